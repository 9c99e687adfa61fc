#include "cli/modes/oneshot.h"

#include <signal.h>
#include <string.h>

#include "base/log.h"
#include "cli/modes/oneshot_json.h"
#include "cli/modes/oneshot_long.h"
#include "cli/modes/oneshot_tools.h"
#include "cli/modes/oneshot_turn.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/saved/store_kept.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/sig.h"
#include "cli/turn/answer_printer.h"
#include "cli/turn/code_block.h"
#include "cli/turn/conversation.h"
#include "cli/turn/input_prompt.h"
#include "cli/turn/turn.h"

/* Reports an answer that was cut. */
static int report_partial(struct app *a, const struct turn *t, struct error *e) {
    const struct engine_info *i = a->info;
    char limit[32];
    const char *more = i->context < i->max_context ? "a larger -c gives more" : "it is the model's maximum";
    if (t->reason == DONE_LENGTH) more = "raise -n for more";
    if (turn_repeats(t)) more = "it repeats itself, which --repeat-penalty 1.1 may prevent";
    if (t->reason == DONE_LENGTH)
        report_note("answer stopped at the -n limit (%s); %s",
                    amount_count(a->opts.v[OPT_MAX_TOKENS].integer, "token", limit, sizeof limit), more);
    if (t->reason != DONE_CONTEXT) return 0;
    if (a->backend->can_continue)
        report_note("the answer was cut: the context of %d tokens is full; %s", i->context, more);
    else report_note("the answer was cut: the server's context is full, or its limit on answers is reached");
    if (e) *e = (struct error){.code = ERR_CONTEXT}; /* reported above, except with -q */
    return ERR_CONTEXT;
}

/* --- the run ---------------------------------------------------------------------------------- */

/* An answer: one turn, or several with tool calls in between. */
struct oneshot {
    struct app *app;
    struct conversation *conv;
    struct prompt *prompt; /* the next turn's */
    struct engine_client *client;
    struct request request;
    struct answer_printer printer;
    bool is_live;        /* printed while it is generated */
    struct turn turn;    /* the last one */
    bool turn_was_added; /* the last turn and the results of its calls are in conv */
    struct tool_round round;
    struct buf earlier_text, earlier_thinking; /* of turns before the last one */
    struct turn_stats earlier_stats;           /* their sums */
    struct buf calls_json;                     /* calls as objects for --json */
    struct oneshot_long *document;             /* and the parts that it was read in */
};

/* Skips the markup of tool calls: valid calls are shown when they are complete, and print_answer() prints invalid
 * ones. */
static int print_live(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct oneshot *o = ctx;
    if (part == OUTPUT_TOOL_CALL && o->app->tools) return 0;
    if (o->app->opts.v[OPT_JSON_LINES].on) return oneshot_json_text(NULL, part, data, n);
    return answer_printer_add(&o->printer, part, data, n);
}

static int print_answer(struct oneshot *o, const struct turn *t, struct error *e) {
    const struct opt_value *v = o->app->opts.v;
    struct answer_printer *p = &o->printer;
    const char *code;
    size_t n;
    if (v[OPT_JSON].on)
        return oneshot_json_answer(o->app, t, &o->calls_json, o->document->n_parts, o->request.sampling.seed, e);
    if (v[OPT_JSON_LINES].on) {
        if (o->app->tools && t->tool.len) oneshot_json_text(NULL, OUTPUT_TOOL_CALL, t->tool.data, t->tool.len);
        return oneshot_json_end(t), 0;
    }
    if (v[OPT_EXTRACT].on) {
        if (!code_block_find(&t->text, 1, &code, &n))
            return error_set(e, ERR_RUNTIME, "--extract: there is no code block in the answer");
        answer_printer_add(p, OUTPUT_TEXT, code, n);
    } else if (v[OPT_NO_STREAM].on) {
        answer_printer_add(p, OUTPUT_THINKING, t->thinking.data, t->thinking.len);
        answer_printer_add(p, OUTPUT_TOOL_CALL, t->tool.data, t->tool.len);
        answer_printer_add(p, OUTPUT_TEXT, t->text.data, t->text.len);
    } else if (o->app->tools) answer_printer_add(p, OUTPUT_TOOL_CALL, t->tool.data, t->tool.len);
    answer_printer_end(p);
    return 0;
}

/* Prints the answer of all turns, and reports about it. */
static int finish_answer(struct oneshot *o, struct error *e) {
    struct app *a = o->app;
    struct turn whole = o->turn; /* a copy whose texts are the whole answer's */
    const double ttft_s = o->earlier_stats.answer_tokens ? o->earlier_stats.ttft_s : o->turn.stats.ttft_s;
    buf_add(&o->earlier_text, whole.text.data ? whole.text.data : "", whole.text.len);
    buf_add(&o->earlier_thinking, whole.thinking.data ? whole.thinking.data : "", whole.thinking.len);
    if (o->earlier_text.failed || o->earlier_thinking.failed)
        return error_set(e, ERR_MEMORY, "no memory for the answer's text");
    whole.text = o->earlier_text, whole.thinking = o->earlier_thinking;
    oneshot_turn_add_stats(&whole.stats, &o->earlier_stats);
    oneshot_turn_add_stats(&whole.stats, &o->document->stats);
    whole.stats.ttft_s = ttft_s;
    int rc = print_answer(o, &whole, e), cut = report_partial(a, &whole, rc ? NULL : e);
    if (a->opts.v[OPT_STATS].on) report_stats(&whole.stats);
    if (a->opts.v[OPT_EXPLAIN].on) report_explain(&whole.stats);
    return rc ? rc : cut;
}

/* --- turns ------------------------------------------------------------------------------------ */

/* Adds the turn that has ended to the conversation, with its calls. */
static int add_turn(struct oneshot *o, struct error *e) {
    const struct turn *t = &o->turn;
    int rc = conversation_add(o->conv, ROLE_ASSISTANT, t->text.data, t->text.len, t->thinking.data, t->thinking.len);
    if (!rc) rc = conversation_add_calls(o->conv, &o->round.calls);
    const struct buf *markup = turn_markup_text(t, o->round.calls.n);
    if (!rc && markup && buf_add(&o->conv->messages[o->conv->n - 1].text, markup->data, markup->len)) rc = ERR_MEMORY;
    if (rc) return error_set(e, rc, "no memory for the conversation");
    o->conv->messages[o->conv->n - 1].partial = t->failed || t->reason != DONE_STOP;
    o->turn_was_added = true;
    return 0;
}

/* Keeps the ended turn's texts for the answer's end. A blank line separates the texts of turns. */
static void keep_turn(struct oneshot *o) {
    struct turn *t = &o->turn;
    if (!o->earlier_stats.answer_tokens) o->earlier_stats.ttft_s = t->stats.ttft_s;
    oneshot_turn_add_stats(&o->earlier_stats, &t->stats);
    buf_add(&o->earlier_text, t->text.data ? t->text.data : "", t->text.len);
    buf_add(&o->earlier_thinking, t->thinking.data ? t->thinking.data : "", t->thinking.len);
    if (t->text.len) buf_str(&o->earlier_text, "\n\n");
    if (t->thinking.len) buf_str(&o->earlier_thinking, "\n\n");
    if (o->is_live && o->app->opts.v[OPT_JSON_LINES].on) {
        if (t->thinking.len) oneshot_json_text(NULL, OUTPUT_THINKING, "\n\n", 2);
        if (t->text.len) oneshot_json_text(NULL, OUTPUT_TEXT, "\n\n", 2);
    }
    turn_free(t);
    o->turn_was_added = false;
}

/* Runs the calls of the ended turn, and makes the prompt of the next one. */
static int answer_calls(struct oneshot *o, struct error *e) {
    struct app *a = o->app;
    const bool lines = a->opts.v[OPT_JSON_LINES].on;
    TRY(add_turn(o, e));
    if (o->is_live && !lines) answer_printer_pause(&o->printer, o->turn.text.len);
    TRY(oneshot_tools_run(a, &o->round, o->conv, o->client, &o->calls_json, e));
    if (o->round.is_over)
        return error_set(e, ERR_RUNTIME, "the answer was ended: it has made %d tool calls; --max-calls allows more",
                         o->round.n_run);
    keep_turn(o);
    prompt_free(o->prompt);
    return prompt_make(a, o->conv, prompt_think_option(&a->opts), o->prompt, e);
}

static int answer_with_tools(struct oneshot *o, struct error *e) {
    do {
        TRY(turn_start(&o->turn, o->app, o->client, o->prompt, &o->request, o->is_live ? print_live : NULL, o, e));
        turn_set_text_tools(&o->turn, o->app->tools ? &o->app->tools->list : NULL);
        oneshot_turn_wait(o->app, &o->turn, "reading the prompt");
        if (o->turn.failed) return *e = o->turn.error, e->code;
        TRY(tool_round_take(&o->round, o->app, &o->turn, o->conv, e));
        if (o->round.calls.n) TRY(answer_calls(o, e));
    } while (o->round.calls.n);
    return 0;
}

/* Returns whether the last turn must still be added to the conversation. One that was not started, or that failed
 * without text, is not added. */
static bool has_unsaved_turn(const struct oneshot *o) {
    return !o->turn_was_added && o->turn.client && (!o->turn.failed || o->turn.text.len);
}

static int save_answer(struct oneshot *o, struct store *store, struct error *e) {
    int rc = has_unsaved_turn(o) ? add_turn(o, e) : 0;
    if (!rc) rc = store_add_disk_keys(store, o->client, e);
    if (!rc) rc = store_save(store, o->app, o->conv, e);
    return rc ? error_prefix(e, "not saved") : 0;
}

/* Keeps the answer of a person for --last. The answer does not fail if it cannot be kept. */
static void keep_answer(struct oneshot *o) {
    struct store store = {0};
    struct error e;
    if (o->app->opts.v[OPT_RAW].on || !has_unsaved_turn(o) || store_kept_open(&store, o->app)) return;
    if (save_answer(o, &store, &e)) log_say(LOG_INFO, "%s", e.text);
    store_close(&store);
}

static int answer_prompt(struct app *a, struct conversation *conv, struct prompt *prompt, struct oneshot_long *document,
                         struct store *store, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct oneshot o = {.app = a,
                        .conv = conv,
                        .prompt = prompt,
                        .document = document,
                        .is_live = !v[OPT_JSON].on && !v[OPT_EXTRACT].on && !v[OPT_NO_STREAM].on};
    o.request.max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1 /* no limit */;
    open_sampling(a, &a->opts, &o.request.sampling);
    answer_printer_init(&o.printer, &a->answer_style);
    int rc = engine_client_open(a, &o.client, e);
    if (rc) return rc;
    engine_client_defer_signals(o.client);
    rc = oneshot_long_read(a, o.client, document, conv, prompt, e);
    const size_t n_before = conv->n;
    if (!rc) rc = answer_with_tools(&o, e);
    if (rc && !o.turn.text.len && !o.turn.thinking.len) oneshot_long_hint(document, e);
    const bool has_text = o.turn.text.len || o.turn.thinking.len || o.earlier_text.len;
    if (!rc) rc = finish_answer(&o, e);
    else if (o.is_live && !v[OPT_JSON_LINES].on && has_text) answer_printer_end(&o.printer);
    if (store && (has_unsaved_turn(&o) || conv->n > n_before)) {
        struct error se;
        int saved = save_answer(&o, store, &se);
        if (saved && rc) report_note("%s", se.text);
        else if (saved) *e = se, rc = saved;
    }
    if (!store && !rc) keep_answer(&o);
    turn_free(&o.turn);
    tool_round_free(&o.round);
    buf_free(&o.earlier_text);
    buf_free(&o.earlier_thinking);
    buf_free(&o.calls_json);
    answer_printer_free(&o.printer);
    engine_client_close(&o.client);
    return rc;
}

static int check_images(const struct opt_value *v, const struct oneshot_long *document, struct error *e) {
    if (v[OPT_RAW].on) return error_set(e, ERR_USAGE, "--raw: an image needs the chat template; leave --raw out");
    if (document->splits) return error_set(e, ERR_USAGE, "--long split: documents with images cannot be split");
    return 0;
}

int oneshot_run(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct buf text = {0};
    struct conversation conv = {0};
    struct prompt prompt = {0};
    struct store store = {0};
    struct image_files images = {0};
    struct oneshot_long document = {.splits = !strcmp(v[OPT_LONG].text, "split")};
    const char *name = v[OPT_CONTINUE].text ? v[OPT_CONTINUE].text : v[OPT_SAVE].text;
    int rc = input_prompt(a, &text, &document.n_document, &images, e);
    if (!rc && images.n) rc = check_images(v, &document, e);
    if (!rc && name) rc = store_check_name(name, e);
    if (!rc && name) store_sweep();
    if (!rc) rc = open_text(a, e);
    if (rc) goto out;
    if (v[OPT_RAW].on) rc = prompt_from_raw(a, text.data, text.len, v[OPT_SPECIAL].on, &prompt, e);
    else {
        if (name) rc = store_open(&store, a, name, v[OPT_CONTINUE].text ? STORE_LOAD : STORE_NEW, &conv, e);
        if (!rc && v[OPT_NO_SAVE].on) store.disabled = true;
        if (!rc && v[OPT_SAVE].text && v[OPT_CONTINUE].text) rc = store_rename(&store, v[OPT_SAVE].text, e);
        if (!rc && v[OPT_SYSTEM].text && conversation_set_system(&conv, v[OPT_SYSTEM].text))
            rc = error_set(e, ERR_MEMORY, "no memory");
        if (!rc && (conversation_ask(&conv, text.data, text.len) || conversation_add_images(&conv, &images, 0)))
            rc = error_set(e, ERR_MEMORY, "no memory");
        if (!rc) rc = prompt_make(a, &conv, prompt_think_option(&a->opts), &prompt, e);
        if (rc == ERR_CONTEXT && document.splits && document.n_document) {
            prompt_free(&prompt);
            rc = 0;
        }
        if (rc) oneshot_long_hint(&document, e);
    }
    prompt.source = constraint_of_options(a);
    if (!rc && a->tools) rc = tool_set_force(a, &prompt, e);
    if (!rc) rc = prompt_check_refusal(&prompt, e);
    if (!rc && name) rc = store_check_space(&store, a, &conv, e);
    if (!rc) rc = open_engine(a, e);
    if (!rc && v[OPT_CONTINUE].text) rc = store_model_check(a, name, &store.model, e);
    if (!rc) rc = answer_prompt(a, &conv, &prompt, &document, name ? &store : NULL, e);
out:
    store_close(&store);
    prompt_free(&prompt);
    conversation_free(&conv);
    image_files_free(&images);
    buf_free(&text);
    return rc;
}
