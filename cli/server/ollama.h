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

struct ollama_model { /* an element of /api/tags and /api/ps */
    const char *name, *family;
    uint64_t bytes, digest;
    long long changed_at, expires_at; /* seconds since 1970; expires_at 0: never */
    int context;                      /* 0: unknown */
};
void ollama_put_model(const struct ollama_model *m, struct buf *b);
/* /api/show */
void ollama_put_details(const struct app *a, struct buf *b);
