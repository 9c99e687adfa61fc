#pragma once
/* Answers of OpenAI's chat completions and completions: functions of struct api_protocol. */
#include "cli/server/api.h"

void openai_begin(struct buf *b, struct api_answer *a);
void openai_chat_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                       const char *s, size_t n, size_t first_logprob);
void openai_chat_call(struct buf *b, struct api_answer *a, const struct api_choice *c,
                      const struct api_call_piece *piece);
void openai_chat_finish(struct buf *b, struct api_answer *a, const struct api_choice *c);
void openai_chat_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void openai_chat_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void openai_text_begin(struct buf *b, struct api_answer *a);
void openai_text_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                       const char *s, size_t n, size_t first_logprob);
void openai_text_finish(struct buf *b, struct api_answer *a, const struct api_choice *c);
void openai_text_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void openai_text_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void openai_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text);
void openai_error(struct buf *b, int status, const char *code, const char *text);

/* Appends the "usage" member and the "timings" of the answers. */
void openai_put_usage(struct buf *b, const struct api_answer *a, const struct api_choice *c, int n);
/* Appends one element of a list of log probabilities: {"token": …, "logprob": …, "bytes": […], "top_logprobs": […]}. */
void openai_put_logprob(struct buf *b, const struct tokenizer *t, const struct turn_logprob *p);
