#pragma once
/* The chat-completions protocol as text: what a client asks, checked and made into what a turn needs, and a turn's answer
 * in its JSON. Knows nothing of sockets. */
#include "cli/tools.h"
#include "cli/turn.h"

struct api_request {
    struct arena arena;                              /* of what is below; strings may lie in the body, which must stay */
    struct json conv;                                /* for the chat template: messages, tools, add_generation_prompt and its other variables */
    const struct json *model, *tools, *user;         /* NULL: not said; user: who asks, where one program asks for several */
    bool one_call;                                   /* "parallel_tool_calls": false */
    const struct json *begun;                        /* "continue_final_message": the text of an answer to go on with, which conv is without; NULL: none */
    bool stream, usage;                              /* usage: as a chunk of its own at the end of a stream */
    bool explain;                                    /* ours: why the modes were chosen, beside the timings */
    bool markup;                                     /* ours: calls as the model writes them, as "tool" */
    bool kept;                                       /* ours: under which keys the prompt is kept on disk, as a comment of the stream */
    bool secret;                                     /* "store": false; nothing of it goes to the disk */
    float temperature, top_p, min_p, repeat_penalty; /* NAN: not said */
    int top_k, max_tokens;                           /* -1: not said */
    int64_t seed;                                    /* -1: not said */
    const char **stop;                               /* NUL-terminated */
    size_t n_stop;
};
/* chat: whose template is to know the roles; NULL: any. ERR_USAGE says which member is wrong, or not served; ERR_MEMORY. Free it in both
 * cases. */
int api_parse(struct api_request *r, const char *body, size_t n, const struct chat *chat, struct error *e);
void api_free(struct api_request *r);
/* What the request says of sampling, over what s has. */
void api_sampling(const struct api_request *r, struct sampling *s);

struct api_answer { /* what stands in every object of one answer */
    char id[40];
    long long created;
    const char *model;
};
/* One piece of a stream; delta: the members of the delta object, may be empty; reason: NULL until the last. */
void api_chunk(struct buf *b, const struct api_answer *a, const char *delta, size_t n, const char *reason);
/* Members of a delta, or of a message: content, reasoning_content or tool. */
void api_text(struct buf *b, enum part part, const char *s, size_t n);
void api_calls(struct buf *b, const struct tool_calls *c, const char *id, bool index);
/* The calls that the model has written, in the request's way: with `markup` none. ERR_MEMORY; what is no call is none. */
int api_tools(const struct api_request *r, const struct turn *t, struct tool_calls *out);
/* The last chunk but the mark: no choice, the usage. */
void api_usage_chunk(struct buf *b, const struct api_answer *a, const struct turn *t, bool explain);
/* The whole answer. calls: those of t->tool; when it has some but no calls, they are shown as text. */
void api_whole(struct buf *b, const struct api_answer *a, const struct turn *t, const struct tool_calls *calls, bool explain);
const char *api_reason(const struct turn *t, const struct tool_calls *calls); /* "stop", "length", "tool_calls" */
/* {"error": {…}}; type by the status. */
void api_error(struct buf *b, int status, const char *code, const char *text);
/* The HTTP status that an error has, and the protocol's code for it, or NULL. */
int api_status(const struct error *e, const char **code);
