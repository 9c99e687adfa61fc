#pragma once
/* Answers of Anthropic's messages: functions of struct api_protocol. */
#include "cli/server/api.h"

void anthropic_begin(struct buf *b, struct api_answer *a);
void anthropic_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part,
                     const char *s, size_t n, size_t first_logprob);
void anthropic_call(struct buf *b, struct api_answer *a, const struct api_choice *c,
                    const struct api_call_piece *piece);
void anthropic_finish(struct buf *b, struct api_answer *a, const struct api_choice *c);
void anthropic_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void anthropic_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text);
void anthropic_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void anthropic_error(struct buf *b, int status, const char *code, const char *text);
