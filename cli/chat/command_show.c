/* Commands about settings and statistics. */
#include <stdio.h>
#include <string.h>

#include "cli/chat/command.h"
#include "cli/chat/screen.h"
#include "cli/open.h"
#include "cli/options/breakers.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/tools/tool_round.h"
#include "cli/turn/template_vars.h"

static void print_setting(struct repl *r, enum opt_id id) {
    static const char *const origins[] = {"default", "default", "configuration file", "environment", "preset",
                                          "flag",    "/set"};
    const struct opt_value *o = &r->app->opts.v[id];
    const char *unset = r->app->info->is_own_sampling ? "hearth's default" : "model default",
               *from = o->text ? origins[o->origin] : unset;
    /* no model has these; they are off unless asked for */
    const bool is_hearths = id >= OPT_PRESENCE_PENALTY && id <= OPT_TOP_N_SIGMA;
    struct sampling s;
    char value[64];
    open_sampling(r->app, &r->app->opts, &s);
    snprintf(value, sizeof value, "%.60s", o->text ? o->text : "");
    switch (id) {
    case OPT_TEMP: snprintf(value, sizeof value, "%g", s.temperature); break;
    case OPT_TOP_P: snprintf(value, sizeof value, "%g", s.top_p); break;
    case OPT_MIN_P: snprintf(value, sizeof value, "%g", s.min_p); break;
    case OPT_TOP_K: snprintf(value, sizeof value, "%d", s.top_k); break;
    case OPT_REPEAT_PENALTY: snprintf(value, sizeof value, "%g", s.repeat_penalty); break;
    case OPT_PRESENCE_PENALTY: snprintf(value, sizeof value, "%g", s.presence_penalty); break;
    case OPT_FREQUENCY_PENALTY: snprintf(value, sizeof value, "%g", s.frequency_penalty); break;
    case OPT_DRY_MULTIPLIER: snprintf(value, sizeof value, "%g", s.dry.multiplier); break;
    case OPT_DRY_BASE: snprintf(value, sizeof value, "%g", s.dry.base); break;
    case OPT_DRY_ALLOWED_LENGTH: snprintf(value, sizeof value, "%d", s.dry.allowed_length); break;
    case OPT_DRY_PENALTY_LAST_N: snprintf(value, sizeof value, "%d", s.dry.last_n); break;
    case OPT_DRY_SEQUENCE_BREAKERS: snprintf(value, sizeof value, "%.60s", o->text ? o->text : BREAKERS_DEFAULT); break;
    case OPT_TOP_N_SIGMA: snprintf(value, sizeof value, "%g", s.top_n_sigma); break;
    case OPT_SEED:
        if (!o->text)
            snprintf(value, sizeof value, "%llu", (unsigned long long)r->active->seed),
                from = "random, of the last answer";
        break;
    case OPT_THINK:
        if (!o->text) snprintf(value, sizeof value, "auto"), from = "template default";
        break;
    case OPT_EFFORT:
        if (!o->text) snprintf(value, sizeof value, "auto"), from = "template default";
        break;
    case OPT_THINK_LIMIT:
        if (!o->text) snprintf(value, sizeof value, "unlimited"), from = "model decides";
        break;
    case OPT_COMPACT_AT:
        if (!o->text) snprintf(value, sizeof value, "never"), from = "default";
        break;
    case OPT_MAX_CALLS:
        if (!o->text) snprintf(value, sizeof value, "%d", TOOL_ROUND_MOST_CALLS), from = "default";
        break;
    case OPT_MAX_TOKENS:
        if (!o->text) snprintf(value, sizeof value, "unlimited"), from = "until the context is full";
        break;
    default:
        if (!o->text) snprintf(value, sizeof value, "no"), from = "default";
    }
    if (r->app->backend->omits_unset_sampling && !o->text && from == unset)
        snprintf(value, sizeof value, "-"), from = "server default";
    else if (!o->text && is_hearths) from = "default";
    screen_print(r, "  %-17s %-14s %s", opt_table[id].name, value, from);
}

void command_show(struct repl *r, const char *arg) {
    const struct engine_info *i = r->app->info;
    char experts[64], threads[32];
    if (!r->app->backend->is_local) screen_print(r, "%s, %s", i->name, r->app->backend->name);
    else {
        snprintf(experts, sizeof experts, i->n_experts ? "%d of %d experts a token" : "no experts", i->topk,
                 i->n_experts);
        screen_print(r, "%s (%s), %s, context %d, %s, %s", i->name, i->model_type, experts, i->context,
                     amount_count(i->threads, "thread", threads, sizeof threads), i->level);
    }
    for (int id = 0; id < OPT_COUNT; id++)
        if (opt_is_live(id)) print_setting(r, id);
    screen_print(r, "  /set NAME VALUE changes one; /set NAME default resets it");
}

static const char *next_setting(void *ctx) {
    int *id = ctx;
    while (*id < OPT_COUNT && !opt_is_live(*id)) ++*id;
    return *id < OPT_COUNT ? opt_table[(*id)++].name : NULL;
}

/* Reports that /set cannot change the setting, and names the command or option to use instead. id: the option of that
 * name, or OPT_COUNT. */
static void report_no_setting(struct repl *r, const char *name, enum opt_id id) {
    char near[40];
    int at = 0;
    for (int k = 0; k < OPT_COUNT && name[0] && !name[1]; k++)
        if (opt_table[k].letter == name[0]) id = k; /* "/set n 5", as on the command line */
    if (id == OPT_COUNT && opt_elsewhere(name)) id = opt_find(opt_elsewhere(name), strlen(opt_elsewhere(name)), NULL);
    if (id == OPT_SYSTEM) screen_print(r, "no setting '%s'; /system TEXT sets the system prompt", name);
    else if (opt_is_live(id)) screen_print(r, "no setting '%s'; did you mean %s?", name, opt_table[id].name);
    else if (id != OPT_COUNT && opt_table[id].flags & OPT_SETTING)
        screen_print(r, "%s cannot be changed in a chat; start hearth with --%s", name, opt_table[id].name);
    else if (opt_nearest(name, next_setting, &at, near, sizeof near))
        screen_print(r, "no setting '%s'; did you mean %s?", name, near);
    else screen_print(r, "no setting '%s'; /show lists the settings", name);
}

/* Says what /set has done, and at once what the model's template makes less of an effort than asked. */
static void report_set(struct repl *r, enum opt_id id, const char *value) {
    struct buf less = {0};
    const enum template_effort known = id == OPT_EFFORT ? template_vars_effort(r->app, &less) : EFFORT_KNOWN;
    const char *why = less.len ? less.data : "";
    if (known == EFFORT_UNKNOWN)
        screen_print(r,
                     "effort %s changes nothing: %s; if the model thinks, /set think-limit N ends that after N tokens",
                     value, why);
    else screen_print(r, "%s is %s from the next answer on%s%s", opt_table[id].name, value, less.len ? "; " : "", why);
    buf_free(&less);
}

void command_set(struct repl *r, const char *arg) {
    struct error e;
    char name[40], value[1024];
    size_t n = strcspn(arg, " =");
    bool no;
    if (!*arg) {
        command_show(r, arg);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), arg);
    arg += n + strspn(arg + n, " =");
    snprintf(value, sizeof value, "%s", arg);
    enum opt_id id = opt_find(name, strlen(name), &no);
    if (!opt_is_live(id)) {
        report_no_setting(r, name, id);
        return;
    }
    if (!*value && opt_table[id].kind > OPT_SWITCH) {
        print_setting(r, id);
        return;
    }
    if (!*value && opt_table[id].kind <= OPT_SWITCH) snprintf(value, sizeof value, no ? "no" : "yes");
    if (!strcmp(value, "default")) r->app->opts.v[id] = (struct opt_value){.text = opt_table[id].def};
    else if (opt_set(&r->app->opts, id, value, ORIGIN_CHAT, name, &e)) {
        screen_print(r, "%s", e.text);
        return;
    }
    report_set(r, id, value);
}

void command_tokens(struct repl *r, const char *arg) {
    struct prompt p = {0};
    struct error e;
    const struct engine_info *i = r->app->info;
    const struct turn_stats *s = &r->active->stats;
    size_t n;
    if (!r->app->backend->count_tokens && !s->prompt_tokens)
        screen_print(r, "a remote server reports token counts with its answers; there is none yet");
    else if (!r->app->backend->count_tokens)
        screen_print(r, "%d tokens including the last answer, as counted by the server",
                     s->prompt_tokens + s->answer_tokens);
    else if (!r->active->conv.n) screen_print(r, "0 of %d tokens: the conversation is empty", i->context);
    else if (prompt_make(r->app, &r->active->conv, prompt_think_option(&r->app->opts), &p, &e) ||
             r->app->backend->count_tokens(r->app, &p, &n, &e))
        screen_print(r, "%s", e.text);
    else
        screen_print(r, "%zu of %d tokens; room for %zu, %.1f MB of KV cache now", n, i->context,
                     n < (size_t)i->context ? (size_t)i->context - n : 0, (double)n * (double)i->kv_token_bytes / 1e6);
    prompt_free(&p);
}

void command_stats(struct repl *r, const char *arg) {
    struct buf b = {0};
    report_stats_text(&r->active->stats, &b);
    if (!r->active->has_stats) screen_print(r, "no answer yet");
    else if (b.data) screen_print(r, "%s", b.data);
    buf_free(&b);
}
void command_explain(struct repl *r, const char *arg) {
    struct buf b = {0};
    report_explain_text(&r->active->stats, &b);
    if (!r->active->has_stats) screen_print(r, "no answer yet");
    else if (b.data) screen_print(r, "%s", b.data);
    buf_free(&b);
}
