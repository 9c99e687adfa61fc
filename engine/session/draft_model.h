#pragma once
/* A second, smaller model with the same tokenizer as the draft, as the scheduler sees it: a table of functions, because
 * the model is an engine of its own (draft_model_engine.h). Its sessions follow those of the main engine: each round
 * submits the conversation and takes a few tokens. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/sampling/sampling.h"

struct session;
/* The draft model's session for one session of the main engine. Zero-initialized: none yet. */
struct draft_model_chat {
    struct session *session;
};

struct draft_model_row {
    struct draft_model_chat *chat;
    const int32_t *tokens; /* [n] the conversation */
    int n, most;
    struct sampling sampling; /* the turn's: equal random numbers make equal choices likely */
    int32_t *out;             /* [most] */
    int made;                 /* receives the number of tokens drafted; 0 after an error */
};

/* ctx is the first argument of each function. All zero: no draft model. */
struct draft_model {
    void *ctx;
    /* Returns whether the draft model can continue tokens [n] by `most` at once. If it has to read many of them first,
     * starts that and returns false. */
    bool (*ready)(void *ctx, struct draft_model_chat *c, const int32_t *tokens, int n, int most);
    /* Drafts for n rows together. stopped(arg): polled now and then; true cancels. */
    void (*run)(void *ctx, struct draft_model_row *rows, int n, bool (*stopped)(void *arg), void *arg);
    void (*close_chat)(void *ctx, struct draft_model_chat *c);
    void (*close)(void *ctx); /* closes all chats */
};
