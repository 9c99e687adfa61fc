#pragma once
/* Answers of Ollama's chat and generate, one JSON object per line, and its lists of models. */
#include "cli/server/api.h"

struct app;

void ollama_begin(struct buf *b, struct api_answer *a);
void ollama_delta(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part, const char *s,
                  size_t n, size_t first_logprob);
void ollama_finish(struct buf *b, struct api_answer *a, const struct api_choice *c);
void ollama_end(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void ollama_fail(struct buf *b, struct api_answer *a, int status, const char *code, const char *text);
void ollama_whole(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
void ollama_error(struct buf *b, int status, const char *code, const char *text);
/* The answer to a request that only asks to load the model. */
void ollama_put_loaded(struct buf *b, struct api_answer *a);

/* /api/tags and /api/ps; /api/show. opened: time at which the model was opened, in seconds since 1970. */
void ollama_put_models(const struct app *a, long long opened, struct buf *b);
void ollama_put_details(const struct app *a, struct buf *b);
