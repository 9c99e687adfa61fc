#pragma once
/* The prompt that the model's chat template renders from a conversation. */
#include "cli/options/opt.h"
#include "cli/turn/conversation.h"
#include "cli/turn/prompt_images.h"
#include "tokenizer/grammar/source.h"
#include "tokenizer/tokenizer.h"

struct app;
struct json;

struct prompt {
    struct ids ids;
    struct prompt_images images; /* whose ids are among those above; opened before, or by prompt_from_json */
    struct buf tail;             /* end of the rendered text: it may open a thinking block */
    int n_shareable;             /* length of the shareable prefix, in tokens (request.n_shared) */
    struct buf body;             /* for an attached or remote engine, instead of ids: members of a request */
    /* with body and ids, which were generated: the tool calls that they have begun, as the model writes them */
    struct buf begun_call;
    struct buf refusal; /* the built-in model's refusal of the question; empty: it is answered */
    /* the answer, if the program gives it without the model; empty: run the model */
    struct ids fixed_answer;
    bool document_dropped;               /* the attached document was dropped; only the question is in the prompt */
    const struct grammar_source *source; /* schema, pattern or grammar of the answer; NULL: none. Owned by the caller */
    bool is_raw;                         /* the text as given: the answer is not split into thinking, calls and text */
    size_t n_given;                      /* number of ids from the template; the ids after them were generated */
    /* the last turn was stopped before its end, so the last character may be incomplete */
    bool is_cut;
    /* the last of the given ids are the text of the answer that is continued: its grammar reads them, too */
    size_t n_partial;
};
void prompt_free(struct prompt *p);
/* Renders and encodes the conversation and the opening of the answer. think: 1, 0, or -1 for the template's default. */
int prompt_make(struct app *a, const struct conversation *c, int think, struct prompt *out, struct error *e);
/* Notes on stderr that the prompt went without its document (prompt.document_dropped). */
void prompt_note_dropped_document(void);
/* ERR_USAGE with the refusal as message if the built-in model refuses the question, so that scripts do not take it for
 * an answer. */
int prompt_check_refusal(const struct prompt *p, struct error *e);
/* As prompt_make, from a JSON object: messages and any template variables. */
int prompt_from_json(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* The same with the template and tokenizer of this process. */
int prompt_from_json_local(struct app *a, const struct json *conv, struct prompt *out, struct error *e);
/* As prompt_make, but the last message of c is a partial answer to continue. */
int prompt_make_partial(struct app *a, const struct conversation *c, int think, struct prompt *out, struct error *e);
/* Appends the beginning of the answer to a finished prompt. */
int prompt_add_partial(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e);
/* --raw, and text that a client has made: BOS, unless the text begins with it, and the text as given. takes_control:
 * control tokens in it count. */
int prompt_from_raw(struct app *a, const char *text, size_t n, bool takes_control, struct prompt *out, struct error *e);
/* Returns --think or --no-think as the argument of prompt_make. */
int prompt_think_option(const struct opts *o);
