#pragma once
/* Answers of OpenAI's responses: functions of struct api_protocol. */
#include "cli/server/api.h"

void responses_begin(struct buf *b, struct api_answer *a);
void responses_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                     const char *s, size_t n, size_t first_logprob);
void responses_call(struct buf *b, struct api_answer *a, const struct api_choice *c,
                    const struct api_call_piece *piece);
void responses_finish(struct buf *b, struct api_answer *a, const struct api_choice *c);
void responses_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void responses_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text);
void responses_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
