#pragma once
/* The chat-completions protocol as JSON text: parses and validates requests, formats answers and errors. Does no I/O: sockets are
 * serve_http.c's. */
#include "cli/turn/tool_calls.h"
#include "cli/turn/turn.h"

struct api_request {
    struct arena arena;                      /* owns the members below; strings may point into the body, which must outlive the request */
    struct json template_input;              /* input of the chat template: messages, tools, add_generation_prompt, other variables */
    const struct json *model, *tools, *user; /* NULL: absent. user: the end user, where one program asks for several */
    bool single_tool_call;                   /* "parallel_tool_calls": false */
    const struct json *partial_answer;       /* "continue_final_message": text of the answer to continue, removed from the conversation; NULL: none */
    bool stream, usage;                      /* usage: send it as a last chunk of the stream */
    bool explain;                            /* extension: report why the modes were chosen, next to the timings */
    bool markup;                             /* extension: send tool calls as the model writes them, as "tool" */
    bool report_disk_keys;                   /* extension: send the disk-cache keys of the prompt as a comment of the stream */
    bool no_disk_cache;                      /* "store": false; nothing of it is written to disk */
    float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty; /* NAN: absent */
    int top_k, max_tokens;                                                                /* -1: absent */
    int64_t seed;                                                                         /* -1: absent */
    const char **stop;                                                                    /* NUL-terminated */
    size_t n_stop;
    const struct json *raw_prompt; /* prompt of a text completion, a string or a list of ids; NULL: a chat */
    struct grammar_source source;  /* schema, pattern or grammar of the answer, if has_source */
    bool has_source;
};
/* Parses and validates a request. chat: the template that must know the roles; NULL accepts any. ERR_USAGE names the member that is
 * wrong or unsupported; ERR_MEMORY. Call api_free in both cases. */
int api_parse(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, struct error *e);
/* The same for a text completion, whose prompt goes to the model as it is. */
int api_parse_completion(struct api_request *r, const char *body, size_t n, struct error *e);
void api_free(struct api_request *r);
/* Overrides in s the sampling options that the request sets. */
void api_override_sampling(const struct api_request *r, struct sampling *s);

struct api_answer { /* fields common to all objects of one answer */
    char id[40];
    long long created;
    const char *model;
};
/* Appends one chunk of a stream. delta: members of the delta object, may be empty. reason: NULL except in the last chunk. */
void api_put_chunk(struct buf *b, const struct api_answer *a, const char *delta, size_t n, const char *reason);
/* Appends the member of a delta or a message: content, reasoning_content or tool. */
void api_put_text(struct buf *b, enum output_kind part, const char *s, size_t n);
void api_put_calls(struct buf *b, const struct tool_calls *c, const char *id, bool index);
/* Parses the tool calls of an answer; none with `markup`. Returns 0 or ERR_MEMORY; text that is not a call yields none. */
int api_parse_tools(const struct api_request *r, const struct turn *t, struct tool_calls *out);
/* Appends the usage chunk, which precedes [DONE] and has no choices. */
void api_put_usage_chunk(struct buf *b, const struct api_answer *a, const struct turn *t, bool explain);
/* The same for text completions: a chunk of the stream with the text s, and the whole answer. */
void api_put_text_chunk(struct buf *b, const struct api_answer *a, const char *s, size_t n, const char *reason);
void api_put_completion(struct buf *b, const struct api_answer *a, const struct turn *t, bool explain);
/* Appends the whole answer. calls: parsed from t->tool; when parsing gave none, t->tool is returned as text. */
void api_put_answer(struct buf *b, const struct api_answer *a, const struct turn *t, const struct tool_calls *calls, bool explain);
const char *api_finish_reason(const struct turn *t, const struct tool_calls *calls); /* "stop", "length", "tool_calls" */
/* Appends {"error": {…}}; the status determines the type. */
void api_put_error(struct buf *b, int status, const char *code, const char *text);
/* Returns the HTTP status of an error; *code is the protocol's code or NULL. */
int api_status(const struct error *e, const char **code);
