#include "cli/cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/app.h"
#include "cli/chat/picker.h"
#include "cli/chat/repl.h"
#include "cli/hub/hub.h"
#include "cli/modes/batch.h"
#include "cli/modes/bench.h"
#include "cli/modes/check_gpus.h"
#include "cli/modes/complete.h"
#include "cli/modes/inspect.h"
#include "cli/modes/models.h"
#include "cli/modes/oneshot.h"
#include "cli/modes/oneshot_json.h"
#include "cli/modes/perplexity.h"
#include "cli/modes/plan.h"
#include "cli/modes/tune.h"
#include "cli/modes/use.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/saved/store_kept.h"
#include "cli/server/serve.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/terminal/term.h"
#include "cli/tools/tool_set.h"
#include "cli/turn/constraint.h"
#include "cli/turn/engine_client_local.h"

static void on_log(void *ctx, enum log_level level, const char *text) {
    const struct app *a = ctx;
    char line[1100];
    if (a->opts.v[OPT_QUIET].on) return;
    snprintf(line, sizeof line, "hearth: %s", text);
    progress_print(line);
}

static void on_config_warning(void *ctx, const char *text) { report_note("%s", text); }

/* Decides on colour: NO_COLOR (non-empty), then CLICOLOR_FORCE, then whether it is a terminal; --color overrides
 * all. */
static bool use_color(const struct app *a, bool tty) {
    const char *when = a->opts.v[OPT_COLOR].text, *no_color = getenv("NO_COLOR"), *force = getenv("CLICOLOR_FORCE");
    if (!strcmp(when, "always")) return true;
    if (!strcmp(when, "never") || (no_color && *no_color)) return false;
    if (force && *force && strcmp(force, "0")) return true;
    return tty && !term_dumb();
}

static void set_streams(struct app *a) {
    enum { TEXT_COLS = 100 }; /* longer rows are hard to read */
    const bool quiet = a->opts.v[OPT_QUIET].on;
    a->color_out = use_color(a, a->tty_out);
    a->color_err = use_color(a, a->tty_err);
    const struct opt_value *v = a->opts.v;
    a->answer_style = (struct answer_style){.color_text = a->color_out,
                                            .color_thinking = a->color_err,
                                            .no_thinking = quiet || !strcmp(v[OPT_SHOW_THINKING].text, "never"),
                                            .plain = v[OPT_PLAIN].on || !strcmp(v[OPT_MARKDOWN].text, "off"),
                                            .hide_marks = !strcmp(v[OPT_MARKDOWN].text, "full"),
                                            .text_cols = v[OPT_WIDTH].text ? (int)v[OPT_WIDTH].integer : TEXT_COLS};
    progress_init(a->tty_err, a->color_err, quiet);
    report_set_quiet(quiet);
    log_set(on_log, a, a->opts.v[OPT_VERBOSE].on ? LOG_DEBUG : LOG_WARN);
}

static int print_buf(struct buf *b, struct error *e) {
    int rc = b->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
    if (!rc) out_write(b->data, b->len);
    buf_free(b);
    return rc;
}

static int print_version(struct app *a, struct error *e) {
    struct buf b = {0};
    struct engine_params p;
    engine_client_local_params(a, &p);
    buf_str(&b, "hearth " HEARTH_VERSION "\n");
    int rc = a->opts.v[OPT_VERBOSE].on ? engine_describe(&p, &b, e) : 0;
    if (!rc) return print_buf(&b, e);
    buf_free(&b);
    return rc;
}

static int print_help(struct app *a, struct error *e) {
    struct buf b = {0};
    const char *what = a->opts.v[OPT_HELP].text;
    /* else a question, with --help before it */
    const bool search = *what && strcmp(what, "all") != 0 && !strchr(what, ' ');
    int rc = search ? opt_help_search(what, &b, e) : 0;
    if (rc) return rc;
    if (!search) opt_help_print(!strcmp(what, "all"), &b);
    if (!a->tty_out) return print_buf(&b, e);
    struct buf wrapped = {0};
    int rows, cols;
    term_size(&rows, &cols);
    opt_help_wrap(&b, cols, &wrapped);
    wrapped.failed |= b.failed;
    buf_free(&b);
    return print_buf(&wrapped, e);
}
static int print_completion(struct app *a, struct error *e) {
    struct buf b = {0};
    int rc = opt_help_completion(a->opts.v[OPT_COMPLETION].text, &b, e);
    return rc ? rc : print_buf(&b, e);
}
static int print_config(struct app *a, struct error *e) {
    struct buf b = {0};
    opt_config_print(&a->opts, a->opts.v[OPT_JSON].on, &b);
    return print_buf(&b, e);
}

static int delete_chat(struct app *a, struct error *e) {
    int rc = store_delete(a->opts.v[OPT_DELETE].text, e);
    if (!rc) report_note("deleted %s", a->opts.v[OPT_DELETE].text);
    return rc;
}

/* Resolves --last and --continue to a name, and -m to the model of that conversation. */
static int find_conversation(struct app *a, bool asks, struct error *e) {
    const struct opt_value *v = a->opts.v;
    char name[128];
    int rc = 0;
    if (v[OPT_LAST].on) rc = store_list_last(name, sizeof name, e);
    else if (!v[OPT_CONTINUE].text) return 0;
    else if (*v[OPT_CONTINUE].text) snprintf(name, sizeof name, "%s", v[OPT_CONTINUE].text);
    else if (!asks)
        rc = error_set(
            e, ERR_USAGE,
            "--continue needs a name here; --list shows the saved conversations, and --last continues the newest");
    else rc = picker_choose_chat(name, sizeof name, e);
    if (!rc && !strcmp(name, STORE_KEPT)) rc = store_kept_take(a, name, sizeof name, e);
    if (!rc) rc = opt_set(&a->opts, OPT_CONTINUE, name, ORIGIN_FLAG, "--continue", e);
    return rc ? rc : store_select_model(a, name, e);
}

static bool reads_prompt(const struct app *a) {
    const struct opt_value *v = a->opts.v;
    if (v[OPT_PROMPT].text || v[OPT_PROMPT_FILE].text || !a->tty_in) return true;
    for (size_t i = 0; i < v[OPT_FILE].n_items; i++)
        if (!strcmp(v[OPT_FILE].items[i], "-")) return true;
    return false;
}

/* Without a mode option: answers a prompt or piped input, or opens the chat on a terminal. */
static int answer_or_chat(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    bool oneshot = reads_prompt(a);
    int rc = find_conversation(a, !oneshot && a->tty_out, e);
    if (!rc) rc = tool_set_open(a, e);
    if (rc) return rc;
    if (oneshot) return oneshot_run(a, e);
    static const enum opt_id scripted[] = {OPT_JSON, OPT_JSON_LINES, OPT_EXTRACT, OPT_RAW, OPT_LONG};
    for (size_t i = 0; i < sizeof scripted / sizeof *scripted; i++)
        if (v[scripted[i]].origin > ORIGIN_DEFAULT)
            return error_set(e, ERR_USAGE, "no prompt for --%s: give one with -p TEXT or on stdin",
                             opt_table[scripted[i]].name);
    if (!a->tty_out)
        return error_set(e, ERR_USAGE,
                         "no prompt: give one with -p TEXT or on stdin (a chat needs a terminal on stdout)");
    return repl_run(a, e);
}

static int run_mode(struct app *a, struct error *e) {
    static const struct {
        enum opt_id mode;
        int (*fn)(struct app *, struct error *);
    } modes[] = {{OPT_BATCH, batch_run},
                 {OPT_INSPECT, inspect_model},
                 {OPT_VERIFY, inspect_verify},
                 {OPT_CHECK_GPUS, check_gpus_run},
                 {OPT_TOKENIZE, inspect_tokenize},
                 {OPT_DETOKENIZE, inspect_detokenize},
                 {OPT_RENDER, inspect_render},
                 {OPT_TOKENS, inspect_tokens},
                 {OPT_BENCH, bench_run},
                 {OPT_PERPLEXITY, perplexity_run},
                 {OPT_SERVE, serve_run},
                 {OPT_STATUS, resident_status_print},
                 {OPT_STOP, resident_status_stop},
                 {OPT_PLAN, plan_run},
                 {OPT_TUNE, tune_run},
                 {OPT_MODELS, models_print},
                 {OPT_USE, use_run},
                 {OPT_PULL, hub_pull_run},
                 {OPT_LIST_CHATS, store_list_print},
                 {OPT_DELETE, delete_chat},
                 {OPT_PRINT_CONFIG, print_config},
                 {OPT_COMPLETION, print_completion},
                 {OPT_COMPLETE, complete_run}};
    if (a->opts.v[OPT_HELP].on) return print_help(a, e);
    if (a->opts.v[OPT_VERSION].on) return print_version(a, e);
    enum opt_id mode = opt_mode(&a->opts);
    if (a->opts.v[OPT_LISTEN].text && mode != OPT_SERVE) return error_set(e, ERR_USAGE, "--listen needs --serve");
    if (a->opts.v[OPT_PAGE].on && !a->opts.v[OPT_LISTEN].text)
        return error_set(e, ERR_USAGE, "--page needs --listen, as in --listen 8080");
    if (a->opts.v[OPT_ALLOW_REMOTE].on && !a->opts.v[OPT_LISTEN].text)
        return error_set(e, ERR_USAGE, "--allow-remote needs --listen");
    int rc = constraint_read_options(a, e);
    if (rc) return rc;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (modes[i].mode == mode) return modes[i].fn(a, e);
    return answer_or_chat(a, e);
}

/* Looks for the options that give errors a form, behind one that is wrong. */
static void find_json(struct app *a, int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        a->opts.v[OPT_JSON].on |= !strcmp(argv[i], "--json");
        a->opts.v[OPT_JSON_LINES].on |= !strcmp(argv[i], "--json-lines");
    }
}

int cli_main(int argc, char **argv) {
    static struct app a; /* static: the log and signal handlers may use it until exit */
    struct error e = {0};
    open_init(&a);
    out_init();
    sig_init();
    a.tty_in = out_terminal(0);
    a.tty_out = out_terminal(1);
    a.tty_err = out_terminal(2);
    opt_init(&a.opts);
    progress_init(false, false, false);
    int rc = opt_parse(&a.opts, argc, argv, &e);
    if (rc) find_json(&a, argc, argv);
    bool plain = a.opts.v[OPT_HELP].on || a.opts.v[OPT_VERSION].on; /* answered even if the configuration is invalid */
    report_set_quiet(a.opts.v[OPT_QUIET].on);
    if (!rc && !plain && !(rc = opt_config_environment(&a.opts, on_config_warning, NULL, &e)))
        rc = opt_config_file(&a.opts, on_config_warning, NULL, &e);
    set_streams(&a);
    if (!rc) rc = run_mode(&a, &e);
    open_close(&a);
    tool_set_close(&a);
    constraint_free_options(&a);
    progress_clear();
    /* the closed stdout caused the cancellation */
    if (!rc || (rc == ERR_CANCELLED && out_failed())) rc = out_check(&e);
    if (rc == OUT_CLOSED_PIPE) sig_die(SIGPIPE); /* quietly, as cat does */
    if (sig_terminated()) sig_die(sig_terminated());
    if (sig_interrupted()) sig_die(SIGINT);
    if (rc == ERR_CANCELLED) sig_die(SIGINT);
    int code = 0;
    if (rc) {
        oneshot_json_error(&a, &e);
        code = *e.text ? report_error(&e) : error_exit_code(rc);
    }
    log_set(NULL, NULL, LOG_WARN);
    opt_free(&a.opts);
    return code;
}
