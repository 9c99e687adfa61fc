#include "cli/modes/oneshot.h"

#include <signal.h>
#include <string.h>

#include "cli/open.h"
#include "cli/report.h"
#include "cli/saved/store.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/turn/answer_printer.h"
#include "cli/turn/code_block.h"
#include "cli/turn/conversation.h"
#include "cli/turn/input_prompt.h"
#include "cli/turn/turn.h"

/* --- JSON forms ------------------------------------------------------------------------------------------------------ */

static bool json_printed; /* the object of --json, or the last line of --json-lines, was printed */

static int write_json_line(struct buf *b) {
    buf_char(b, '\n');
    int rc = b->failed ? ERR_MEMORY : out_write(b->data, b->len);
    buf_free(b);
    return rc;
}

/* --json-lines: chunks never split a character, which the decoder holds back */
static int print_json_text(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct buf b = {0};
    buf_fmt(&b, "{\"type\": \"%s\", \"text\": ", part == OUTPUT_THINKING ? "thinking" : part == OUTPUT_TOOL_CALL ? "tool" : "delta");
    out_json_string(&b, data, n);
    buf_char(&b, '}');
    return write_json_line(&b);
}

void oneshot_json_error(const struct app *a, const struct error *e) {
    struct buf b = {0};
    bool lines = a->opts.v[OPT_JSON_LINES].on;
    if (json_printed || opt_mode(&a->opts) != OPT_COUNT || (!lines && !a->opts.v[OPT_JSON].on)) return;
    buf_str(&b, lines ? "{\"type\": \"error\", \"error\": {" : "{\"error\": {");
    buf_fmt(&b, "\"code\": %d, \"message\": ", error_exit_code(e->code));
    out_json_string(&b, e->text, strlen(e->text));
    buf_str(&b, "}}");
    write_json_line(&b);
}

static void print_json_end(const struct turn *t) {
    struct buf b = {0};
    buf_str(&b, "{\"type\": \"usage\", \"usage\": ");
    turn_json_usage(t, &b);
    buf_str(&b, ", \"timing\": ");
    turn_json_timing(t, &b);
    buf_char(&b, '}');
    write_json_line(&b);
    buf_fmt(&b, "{\"type\": \"done\", \"reason\": \"%s\"}", turn_reason_name(t->reason));
    write_json_line(&b);
    json_printed = true;
}

/* Reports an answer that was cut. */
static int report_partial(struct app *a, const struct turn *t, struct error *e) {
    const struct engine_info *i = a->info;
    if (t->reason == DONE_LENGTH)
        report_note("the answer was cut at the -n limit of %lld tokens; a larger -n gives more", (long long)a->opts.v[OPT_MAX_TOKENS].integer);
    if (t->reason != DONE_CONTEXT) return 0;
    report_note("the answer was cut: the context of %d tokens is full; %s", i->context,
                i->context < i->max_context ? "a larger -c gives more" : "it is the model's maximum");
    if (e) *e = (struct error){.code = ERR_CONTEXT}; /* reported above, except with -q */
    return ERR_CONTEXT;
}

static int print_json_answer(struct app *a, const struct turn *t, uint64_t seed, struct error *e) {
    struct buf b = {0};
    const char *code;
    size_t n;
    const char *name = a->info->name;
    buf_str(&b, "{\"model\": ");
    out_json_string(&b, name, strlen(name));
    buf_str(&b, ", ");
    turn_json_answer(t, &b);
    if (a->opts.v[OPT_EXTRACT].on) {
        buf_str(&b, ", \"code\": ");
        if (code_block_find(&t->text, 1, &code, &n)) out_json_string(&b, code, n);
        else buf_str(&b, "null");
    }
    buf_fmt(&b, ", \"seed\": %llu, \"timing\": ", (unsigned long long)seed);
    turn_json_timing(t, &b);
    buf_char(&b, '}');
    json_printed = !b.failed;
    return write_json_line(&b) == ERR_MEMORY ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

/* --- the run --------------------------------------------------------------------------------------------------------- */

/* Runs one turn to its end, with prefill progress on a terminal. */
static void run_turn(struct app *a, struct turn *t) {
    struct engine_event news;
    const struct event *ev = &news.event;
    progress_begin("reading the prompt");
    while (t->running) {
        if (!engine_client_poll(a, &news, 250)) {
            progress_tick();
            continue;
        }
        if (ev->kind == EVENT_PROGRESS && ev->total > 0) progress_update(NULL, (double)ev->done / ev->total, ev->left_s);
        if (ev->kind == EVENT_DONE || ev->kind == EVENT_ERROR || (ev->kind == EVENT_TOKEN && progress_shown() && t->on_text)) progress_clear();
        turn_event(t, &news);
    }
    progress_clear();
}

static int print_answer(struct app *a, struct turn *t, struct answer_printer *p, uint64_t seed, struct error *e) {
    const struct opt_value *v = a->opts.v;
    const char *code;
    size_t n;
    int rc = 0;
    if (v[OPT_JSON].on) rc = print_json_answer(a, t, seed, e);
    else if (v[OPT_JSON_LINES].on) print_json_end(t);
    else if (v[OPT_EXTRACT].on) {
        if (!code_block_find(&t->text, 1, &code, &n)) return error_set(e, ERR_RUNTIME, "--extract: there is no code block in the answer");
        answer_printer_add(p, OUTPUT_TEXT, code, n);
        answer_printer_end(p);
    } else {
        if (v[OPT_NO_STREAM].on) {
            answer_printer_add(p, OUTPUT_THINKING, t->thinking.data, t->thinking.len);
            answer_printer_add(p, OUTPUT_TOOL_CALL, t->tool.data, t->tool.len);
            answer_printer_add(p, OUTPUT_TEXT, t->text.data, t->text.len);
        }
        answer_printer_end(p);
    }
    return rc;
}

static int save_answer(struct app *a, struct conversation *conv, struct store *store, const struct turn *t, struct error *e) {
    int rc = conversation_add(conv, ROLE_ASSISTANT, t->text.data, t->text.len, t->thinking.data, t->thinking.len);
    if (rc) return error_set(e, rc, "not saved: no memory");
    conv->messages[conv->n - 1].partial = t->failed || t->reason != DONE_STOP;
    rc = store_add_disk_keys(store, t->client, e);
    if (!rc) rc = store_save(store, a, conv, e);
    return rc ? error_prefix(e, "not saved") : 0;
}

static int answer_prompt(struct app *a, struct conversation *conv, const struct prompt *prompt, struct store *store, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct engine_client *s;
    struct turn t;
    struct answer_printer p;
    struct request r = {.max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1};
    bool live = !v[OPT_JSON].on && !v[OPT_EXTRACT].on && !v[OPT_NO_STREAM].on;
    open_sampling(a, &a->opts, &r.sampling);
    answer_printer_init(&p, &a->answer_style);
    int rc = engine_client_open(a, &s, e);
    if (rc) return rc;
    engine_client_defer_signals(s);
    turn_fn fn = !live ? NULL : v[OPT_JSON_LINES].on ? print_json_text : answer_printer_add;
    if ((rc = turn_start(&t, a, s, prompt, &r, fn, &p, e))) goto out;
    run_turn(a, &t);
    if (t.failed) {
        *e = t.error;
        rc = e->code;
        if (live && !v[OPT_JSON_LINES].on && (t.text.len || t.thinking.len)) answer_printer_end(&p);
    } else {
        rc = print_answer(a, &t, &p, r.sampling.seed, e);
        int cut = report_partial(a, &t, rc ? NULL : e);
        if (!rc) rc = cut;
        if (v[OPT_STATS].on) report_stats(&t.stats);
        if (v[OPT_EXPLAIN].on) report_explain(&t.stats);
    }
    if (store && (!t.failed || t.text.len)) {
        struct error se;
        int saved = save_answer(a, conv, store, &t, &se);
        if (saved && rc) report_note("%s", se.text);
        else if (saved) *e = se, rc = saved;
    }
    turn_free(&t);
out:
    answer_printer_free(&p);
    engine_client_close(&s);
    return rc;
}

int oneshot_run(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct buf text = {0};
    struct conversation conv = {0};
    struct prompt prompt = {0};
    struct store store = {0};
    const char *name = v[OPT_CONTINUE].text ? v[OPT_CONTINUE].text : v[OPT_SAVE].text;
    int rc = input_prompt(a, &text, e);
    if (!rc && name) rc = store_check_name(name, e);
    if (!rc && name) store_sweep();
    if (!rc) rc = open_text(a, e);
    if (rc) goto out;
    if (v[OPT_RAW].on) rc = prompt_from_raw(a, text.data, text.len, &prompt, e);
    else {
        if (name) rc = store_open(&store, a, name, v[OPT_CONTINUE].text ? STORE_LOAD : STORE_NEW, &conv, e);
        if (!rc && v[OPT_NO_SAVE].on) store.disabled = true;
        if (!rc && v[OPT_SAVE].text && v[OPT_CONTINUE].text) rc = store_rename(&store, v[OPT_SAVE].text, e);
        if (!rc && v[OPT_SYSTEM].text && conversation_set_system(&conv, v[OPT_SYSTEM].text)) rc = error_set(e, ERR_MEMORY, "no memory");
        if (!rc && conversation_add(&conv, ROLE_USER, text.data, text.len, NULL, 0)) rc = error_set(e, ERR_MEMORY, "no memory");
        if (!rc) rc = prompt_make(a, &conv, prompt_think_option(&a->opts), &prompt, e);
    }
    prompt.source = constraint_of_options(a);
    if (!rc) rc = prompt_refused(&prompt, e);
    if (!rc) rc = open_engine(a, e);
    if (!rc && v[OPT_CONTINUE].text) rc = store_model_check(a, name, &store.model, e);
    if (!rc) rc = answer_prompt(a, &conv, &prompt, name ? &store : NULL, e);
out:
    store_close(&store);
    prompt_free(&prompt);
    conversation_free(&conv);
    buf_free(&text);
    return rc;
}
