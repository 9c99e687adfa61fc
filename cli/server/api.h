#pragma once
/* Requests and answers of clients, whatever their protocol. Each protocol parses its requests into struct api_request
 * and formats answers; its functions are in a table (struct api_protocol). Does no I/O: sockets are serve_http.c's. */
#include "cli/turn/turn.h"
#include "tokenizer/chat/tool_calls.h"
#include "tokenizer/tokenizer.h"

/* MAX_N: answers to one prompt; MAX_CHOICES: of one request */
enum { API_MAX_N = 16, API_MAX_CHOICES = 128, API_ID_SIZE = 40 };
enum api_tool_choice { API_TOOLS_AUTO, API_TOOLS_NONE, API_TOOLS_REQUIRED };

/* A tool of a namespace. The model calls it by one joined name; the client knows the namespace and the name. */
struct api_spaced_tool {
    struct json joined, space, name; /* strings */
};

struct api_request {
    /* owns the members below; strings may point into the body, which must outlive the request */
    struct arena arena;
    /* input of the chat template: messages, tools, add_generation_prompt, other variables */
    struct json template_input;
    const struct json *model, *tools; /* NULL: absent */
    const struct json *user;          /* the end user, where one program asks for several; NULL: absent */
    const struct json *skipped_tool;  /* type of a tool that was left out; NULL: none */
    struct api_spaced_tool *spaced;   /* tools of namespaces, where the protocol has such */
    size_t n_spaced;
    enum api_tool_choice tool_choice; /* NONE: tools is NULL */
    const struct json *forced_tool;   /* with REQUIRED: name of the only tool that may be called; NULL: any */
    const struct json *allowed_tools; /* names of those that may be called; NULL: all */
    bool single_tool_call;            /* at most one call in an answer */
    /* answers of the protocol have no calls: as the model writes them, they are text */
    bool no_tool_calls;
    const struct json *partial_answer; /* text of the answer to continue, removed from the conversation; NULL: none */
    /* usage: report it at the end of a stream, where the protocol leaves that to the client */
    bool stream, usage;
    bool explain; /* extension: report why the modes were chosen, next to the timings */
    /* extension, of attached processes: send tool calls as the model writes them, as "tool", and ids as comments */
    bool markup;
    /* extension: token ids of an earlier answer, which the answer continues; NULL: none */
    const struct json *generated;
    bool generated_whole; /* extension: that answer was not cut */
    /* extension: send the disk-cache keys of the prompt as a comment of the stream */
    bool report_disk_keys;
    bool no_disk_cache;  /* nothing of it is written to disk */
    bool seals_thinking; /* /v1/responses: thinking is also sent as encrypted_content */
    bool load_only;      /* no answer: the client asks whether the model is loaded */
    bool has_keep;       /* keep_s is given: how long the model stays open when unused; negative: for ever */
    double keep_s;
    float temperature, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty; /* NAN: absent */
    float dry_multiplier, dry_base, top_n_sigma;                                          /* NAN: absent */
    int dry_allowed_length, dry_penalty_last_n;                                           /* -2: absent */
    const char *dry_breakers; /* as struct dry has them; NULL: absent */
    int top_k, max_tokens;    /* -1: absent */
    int64_t seed;             /* -1: absent */
    int n;                    /* answers to each prompt, 1 to API_MAX_N */
    int best_of;              /* 0, or as n */
    bool logprobs;
    int n_top_logprobs;
    struct logit_bias *bias;
    int n_bias;
    const char **stop; /* NUL-terminated; an empty one, as of a form that was left empty, ends nothing */
    size_t n_stop;
    const struct json *raw_prompt; /* prompts of a text completion, each a string or a list of ids; NULL: a chat */
    uint32_t n_prompts;            /* 1, or that of raw_prompt */
    const struct json *suffix; /* text after the gap that raw_prompt, then a string, is to be continued to; NULL: none
                                */
    struct grammar_source source; /* schema, pattern or grammar of the answer, if has_source */
    bool has_source;
    /* where `source` allows calls or text: what a text must match; text NULL: anything */
    struct grammar_source text_source;
};

struct api_answer { /* the common part of all objects of one reply, and the state of its stream */
    const struct api_request *request;
    const struct api_protocol *protocol;
    const struct tokenizer *tokenizer;
    char id[API_ID_SIZE];
    const char *code; /* the id without its prefix */
    long long created;
    const char *model;
    bool is_unloaded;       /* the reply to load_only: the model is closed, instead */
    int n_prompt;           /* tokens */
    int n_blocks, n_events; /* in a stream: blocks begun; events sent */
    bool block_open;        /* the last block is open */
    enum output_kind block; /* its kind */
    struct buf text;        /* in a stream: text of the open block, where the protocol repeats it */
    struct buf items;       /* in a stream: finished items, where the protocol repeats them */
};
struct api_choice { /* one answer; its turn has ended, except in api_protocol.delta */
    const struct turn *turn;
    const struct tool_calls *calls; /* parsed from turn->tool; when parsing gave none, turn->tool is returned as text */
    int index;
};

struct api_call_piece {
    const struct tool_call *call;
    size_t index; /* the call's number in its answer, from 0 */
    size_t from;  /* byte of the arguments, up to their end */
    bool begins, ends;
};

/* How a protocol puts requests and answers into text. Formatting functions append to a buffer. Streams: begin, then
 * delta for each piece of text and call for each piece of a call, then finish once per choice, then end; or fail
 * instead of the rest. Replies without a stream: whole. */
struct api_protocol {
    const char *id_prefix;
    const char *stream_type; /* content type of a stream */
    bool has_comments;       /* lines that begin with a colon are comments of a stream */
    bool fails_in_stream;    /* a prompt that is too long for a stream fails within it, not by its status */
    const char *still_here;  /* part of a stream that says nothing, sent while the answer is silent; NULL: none */
    /* Parses and validates a request. chat: the template that must know the roles; NULL accepts any. strict: unknown
     * members are refused. ERR_USAGE names the member that is wrong or unsupported; ERR_MEMORY. Call api_free in both
     * cases. */
    int (*parse)(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                 struct error *e);
    void (*begin)(struct buf *b, struct api_answer *a);
    /* Formats generated text. first_logprob: turn->logprobs[first_logprob] belongs to the text's first token; SIZE_MAX:
     * log probabilities were not requested. */
    void (*delta)(struct buf *b, struct api_answer *a, const struct api_choice *c, enum output_kind part, const char *s,
                  size_t n, size_t first_logprob);
    /* Formats a piece of call i: its head if it begins, its arguments from a byte on, and its end. NULL: finish formats
     * the calls of a->calls. Otherwise all calls have been formatted when finish is called. */
    void (*call)(struct buf *b, struct api_answer *a, const struct api_choice *c, const struct api_call_piece *piece);
    void (*finish)(struct buf *b, struct api_answer *a, const struct api_choice *c);
    void (*end)(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
    void (*fail)(struct buf *b, struct api_answer *a, int status, const char *code, const char *text);
    void (*whole)(struct buf *b, struct api_answer *a, const struct api_choice *c, int n);
    /* the reply to a request with load_only; NULL: the protocol has none */
    void (*loaded)(struct buf *b, struct api_answer *a);
    /* the body of a reply with that status */
    void (*error)(struct buf *b, int status, const char *code, const char *text);
};
extern const struct api_protocol openai_chat, openai_text, openai_responses, anthropic_messages, ollama_chat,
    ollama_generate, llama_infill;

/* Sets r to a request without members and parses its JSON text. */
int api_parse_root(struct api_request *r, const char *body, size_t n, struct json *root, struct error *e);
void api_free(struct api_request *r);
int api_n_choices(const struct api_request *r);                /* the answers to all prompts, in the order of these */
int api_answer_make_id(struct api_answer *a, struct error *e); /* from random numbers, with the protocol's prefix */
void api_answer_free(struct api_answer *a);
/* Overrides in s the sampling options that the request sets. choice: each answer has a seed of its own. r must outlive
 * the turn. */
void api_override_sampling(const struct api_request *r, int choice, struct sampling *s);

/* Tools whose calls may be an answer's text (turn_set_text_tools()): none where something else asks for JSON. */
const struct json *api_text_tools(const struct api_request *r);
/* Parses the tool calls of an answer; none with `markup`. Returns 0 or ERR_MEMORY; text that is not a call yields
 * none. */
int api_parse_tools(const struct api_request *r, const struct turn *t, struct tool_calls *out);
/* Appends the answer's text: the text proper, and tool calls that could not be parsed. */
void api_put_answer_text(struct buf *b, const struct api_choice *c);
/* Appends the head of a server-sent event whose data is an object with the event's name as its type: event: NAME, data:
 * {"type": "NAME". Its end is "}\n\n". */
void api_put_event(struct buf *b, const char *name);
bool api_is_cut(const struct turn *t); /* the answer ended at a limit of tokens */
/* Returns the HTTP status of an error; *code is the protocol's code or NULL. */
int api_status(const struct error *e, const char **code);
void api_put_text_member(struct buf *b, const char *name, const char *s, size_t n); /* appends "name": "s" */
