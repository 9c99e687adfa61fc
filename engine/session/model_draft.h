#pragma once
/* A second, smaller model with the same tokenizer as the draft. It is an engine of its own on the CPU, whose sessions follow those of the main engine: each
 * round submits the conversation and takes a few tokens. A conversation that the draft model has not read is read in the background first.
 * Threads: model_draft_ready() and model_draft_run() belong to the main engine's thread; a lock orders them with model_draft_chat_close(). */
#include "engine/engine.h"

struct model_draft;
/* The draft model's session for one session of the main engine. Zero-initialized: none yet. */
struct model_draft_chat {
    struct session *session;
};

/* Opens the checkpoint `dir` with the threads, level, KV type and topology of the main engine's parameters. Errors are engine_open()'s; *e names the option. */
int model_draft_open(struct model_draft **out, const char *dir, const struct engine_params *p, struct error *e);
void model_draft_close(struct model_draft **d); /* closes all chats */
void model_draft_chat_close(struct model_draft *d, struct model_draft_chat *c);

/* Returns whether the draft model can continue tokens [n] by `most` at once. If it has to read many of them first, starts that and returns false. */
bool model_draft_ready(struct model_draft *d, struct model_draft_chat *c, const int32_t *tokens, int n, int most);

struct model_draft_row {
    struct model_draft_chat *chat;
    const int32_t *tokens; /* [n] the conversation */
    int n, most;
    struct sampling sampling; /* the turn's: equal random numbers make equal choices likely */
    int32_t *out;             /* [most] */
    int made;                 /* receives the number of tokens drafted; 0 after an error */
};
/* Drafts for n rows together. stopped(ctx): polled now and then; true cancels. */
void model_draft_run(struct model_draft *d, struct model_draft_row *rows, int n, bool (*stopped)(void *ctx), void *ctx);
