/* --plan as text: what fits where, time to first token by length and mode with a plot, decode speed by number of
 * sessions, the busiest resource of each, and the effect of one more resource. The figures are engine_plan's JSON
 * object, which --json prints unchanged. */
#include "cli/modes/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/modes/bench.h"
#include "cli/open.h"
#include "cli/options/paths.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/term.h"
#include "cli/turn/engine_client_local.h"

struct plan_view {
    struct buf *out;
    bool color, verbose;
    int width;
};

static const char *json_text(const struct json *j, char *out, size_t cap) {
    snprintf(out, cap, "%.*s", j && j->type == JSON_STRING ? (int)j->n : 0,
             j && j->type == JSON_STRING ? j->string : "");
    return out;
}
static const char *json_seconds(const struct json *j, char *out, size_t cap) {
    double s = json_num(j, NAN);
    if (isnan(s)) snprintf(out, cap, "-");
    else if (s < 0.9995) snprintf(out, cap, s < 0.00995 ? "%.1f ms" : "%.0f ms", s * 1e3);
    else if (s < 99.5) snprintf(out, cap, "%.3g s", s);
    else snprintf(out, cap, "%.0f s", s);
    return out;
}
static const char *format_count(int64_t n, char *out, size_t cap) {
    if (n < 1000) snprintf(out, cap, "%d", (int)n);
    else if (n < 1000000) snprintf(out, cap, "%d,%03d", (int)(n / 1000), (int)(n % 1000));
    else snprintf(out, cap, "%.1f million", (double)n / 1e6);
    return out;
}
static const char *json_bytes(const struct json *j, char *out, size_t cap) {
    return amount_bytes((uint64_t)json_num(j, 0), out, cap);
}

/* Formats the member tokens_per_s. */
static const char *json_rate(const struct json *row, char *out, size_t cap) {
    return amount_rate(json_num(json_get(row, "tokens_per_s"), 0), out, cap);
}

static void put_heading(struct plan_view *v, const char *text) {
    buf_fmt(v->out, v->color ? "\n\033[1m%s\033[0m\n" : "\n%s\n", text);
}
/* Wraps words at the width, indented by two blanks. */
static void put_paragraph(struct plan_view *v, const char *text) {
    int at = 0;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (at && at + 1 + n > v->width) buf_char(v->out, '\n'), at = 0;
        if (!at) buf_str(v->out, "  "), at = 2;
        else buf_char(v->out, ' '), at++;
        buf_add(v->out, p, (size_t)n);
        at += n;
        p += n + strspn(p + n, " ");
    }
    buf_char(v->out, '\n');
}

static void put_memory(struct plan_view *v, const struct json *fits) {
    char a[32], b[32], c[32], line[200];
    const struct json *host = json_get(fits, "host");
    int n = snprintf(line, sizeof line, "%s of weights in memory", json_bytes(json_get(host, "bytes"), a, sizeof a));
    if (json_num(json_get(host, "have"), 0) > 0)
        snprintf(line + n, sizeof line - (size_t)n, " of %s, plus %s tokens of context",
                 json_bytes(json_get(host, "have"), b, sizeof b),
                 format_count(json_int(json_get(fits, "context_tokens"), 0), c, sizeof c));
    strncat(line, ".", sizeof line - strlen(line) - 1);
    put_paragraph(v, line);
}

static void put_fits(struct plan_view *v, const struct json *fits) {
    char a[32], b[32], c[32], line[900], why[660];
    const struct json *host = json_get(fits, "host"), *cards = json_get(fits, "cards");
    double need = json_num(json_get(host, "bytes"), 0), have = json_num(json_get(host, "have"), 0);
    put_heading(v, "What fits where");
    if (!json_bool(json_get(host, "fits"), true)) {
        const struct json *disk = json_get(fits, "disk");
        int n =
            snprintf(line, sizeof line, "%s of weights do not fit in %s of memory: %s are missing.",
                     json_bytes(json_get(host, "bytes"), a, sizeof a), json_bytes(json_get(host, "have"), b, sizeof b),
                     amount_bytes((uint64_t)(need - have), c, sizeof c));
        if (disk)
            snprintf(line + n, sizeof line - (size_t)n,
                     " They are read from disk on demand, at %s/s; memory caches %.0f %% of the routed experts and is "
                     "expected to hold "
                     "%.0f %% of those that an answer chooses.",
                     json_bytes(json_get(disk, "bytes_per_s"), a, sizeof a),
                     100 * json_num(json_get(disk, "experts_in_memory"), 0),
                     100 * json_num(json_get(disk, "chosen_in_memory"), 0));
        else
            snprintf(line + n, sizeof line - (size_t)n,
                     " To get figures for experts read from disk, give its speed in the machine file, such as disk = "
                     "3G; memory must hold "
                     "everything else.");
        put_paragraph(v, line);
        if (!disk) return;
    } else put_memory(v, fits);
    snprintf(line, sizeof line, "A token reads %s of weights, and %s of KV cache for each token before it.",
             json_bytes(json_get(fits, "token_bytes"), a, sizeof a),
             json_bytes(json_get(fits, "kv_token_bytes"), b, sizeof b));
    put_paragraph(v, line);
    if (!cards || !cards->n) return put_paragraph(v, "No GPUs: everything runs on the CPU.");
    const struct json *first = json_at(cards, 0);
    snprintf(line, sizeof line, "On GPUs (%u x %s, %s each): %s.", cards->n,
             json_text(json_get(first, "name"), c, sizeof c), json_bytes(json_get(first, "bytes"), b, sizeof b),
             json_text(json_get(fits, "resident"), why, sizeof why));
    put_paragraph(v, line);
}

static void put_nodes(struct plan_view *v, const struct json *nodes, bool has_cards) {
    const int n = (int)json_int(json_get(nodes, "n"), 0),
              reach = (int)lround(100 * json_num(json_get(nodes, "reach"), 1));
    char a[32], b[32], line[300];
    if (!nodes) return;
    if (json_bool(json_get(nodes, "placed"), false))
        snprintf(line, sizeof line,
                 "%d NUMA nodes: each gets the rows of every expert that its CPUs compute%s. Without that, the CPU "
                 "would reach "
                 "%d %% of its bandwidth, and one answer %s tok/s instead of %s.",
                 n, has_cards ? ", in the memory that uploads read" : "", reach,
                 amount_rate(json_num(json_get(nodes, "unplaced_tokens_per_s"), 0), a, sizeof a),
                 amount_rate(json_num(json_get(nodes, "tokens_per_s"), 0), b, sizeof b));
    else
        snprintf(line, sizeof line,
                 "%d NUMA nodes: weights are not placed by node, since they fill more than 7/8 of memory; the CPU "
                 "reaches %d %% of its bandwidth.",
                 n, reach);
    put_paragraph(v, line);
}

static void put_busiest(struct plan_view *v, const struct json *row, bool color) {
    char name[32];
    buf_fmt(v->out, color ? "\033[2m%s %.0f %%\033[0m" : "%s %.0f %%",
            json_text(json_get(row, "limit"), name, sizeof name), 100 * json_num(json_get(row, "busy"), 0));
}

static const char *const mode_names[] = {"cpu", "blend", "slp", "dslp"};
enum { N_MODES = sizeof mode_names / sizeof *mode_names };

static void put_prefill(struct plan_view *v, const struct json *rows) {
    const struct json *first = json_get(json_at(rows, 0), "modes");
    char a[32], chosen[16];
    if (!rows || !rows->n) return;
    put_heading(v, "Time to first token, by tokens of the prompt (* chosen by hearth)");
    buf_str(v->out, "   tokens");
    for (int m = 0; m < N_MODES; m++)
        if (json_get(first, mode_names[m])) buf_fmt(v->out, "%10s ", mode_names[m]);
    buf_str(v->out, "  busiest\n");
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct json *row = json_at(rows, i), *times = json_get(row, "modes");
        json_text(json_get(row, "chosen"), chosen, sizeof chosen);
        buf_fmt(v->out, "  %7s", format_count(json_int(json_get(row, "tokens"), 0), a, sizeof a));
        for (int m = 0; m < N_MODES; m++)
            if (json_get(first, mode_names[m])) {
                bool is_chosen = !strcmp(mode_names[m], chosen);
                buf_fmt(v->out, is_chosen && v->color ? "\033[32m%10s\033[0m%s" : "%10s%s",
                        json_seconds(json_get(times, mode_names[m]), a, sizeof a), is_chosen ? "*" : " ");
            }
        buf_str(v->out, "  ");
        put_busiest(v, row, v->color);
        buf_char(v->out, '\n');
    }
}

/* Plots one bar per length: the logarithm of the chosen mode's time, in eighths of a column. */
static void put_plot(struct plan_view *v, const struct json *rows) {
    static const char *const eighth_blocks[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    double least = INFINITY, most = 0;
    char a[32], b[32], chosen[16];
    for (uint32_t i = 0; rows && i < rows->n; i++) {
        double t = json_num(json_get(json_get(json_at(rows, i), "modes"),
                                     json_text(json_get(json_at(rows, i), "chosen"), chosen, sizeof chosen)),
                            0);
        if (t > 0) least = fmin(least, t), most = fmax(most, t);
    }
    int room = v->width - 24;
    if (!(most > 0) || room < 16) return;
    if (!v->verbose) put_heading(v, "Time to first token, by tokens of the prompt (bars in logarithmic scale)");
    double low = log(least / 2), scale = room / (log(most) - low);
    if (v->verbose) buf_char(v->out, '\n');
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct json *row = json_at(rows, i),
                          *time = json_get(json_get(row, "modes"),
                                           json_text(json_get(row, "chosen"), chosen, sizeof chosen));
        double t = json_num(time, 0);
        if (!(t > 0)) continue;
        int eighths = (int)((log(t) - low) * scale * 8);
        buf_fmt(v->out, "  %7s ", format_count(json_int(json_get(row, "tokens"), 0), a, sizeof a));
        if (v->color) buf_str(v->out, t <= 30 ? "\033[32m" : "\033[33m");
        for (int k = 0; k < eighths / 8; k++) buf_str(v->out, "█");
        buf_str(v->out, eighth_blocks[eighths % 8]);
        if (v->color) buf_str(v->out, "\033[0m");
        buf_fmt(v->out, " %s\n", json_seconds(time, b, sizeof b));
    }
}

static void put_decode(struct plan_view *v, const struct json *rows) {
    char mode[16], rate[32];
    if (!rows || !rows->n) return;
    put_heading(v, "Decoding, after 1,024 tokens");
    buf_str(v->out, "  sessions  mode   per token   all sessions        during a prefill  busiest\n");
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct json *row = json_at(rows, i);
        buf_fmt(v->out, "  %8d  %-6s %6.1f ms  %7s tok/s  %19.1f ms  ", (int)json_int(json_get(row, "sessions"), 0),
                json_text(json_get(row, "mode"), mode, sizeof mode), json_num(json_get(row, "tpot_ms"), 0),
                json_rate(row, rate, sizeof rate), json_num(json_get(row, "tpot_beside_prefill_ms"), 0));
        put_busiest(v, row, v->color);
        buf_char(v->out, '\n');
    }
}

static void put_max_tpot(struct buf *line, const struct json *bound) {
    const int n = (int)json_int(json_get(bound, "sessions"), 0);
    const double bound_ms = json_num(json_get(bound, "bound_ms"), 0), ms = json_num(json_get(bound, "tpot_ms"), 0);
    char rate[32];
    if (!bound) return;
    if (json_bool(json_get(bound, "met"), false))
        buf_fmt(line, " Within --max-tpot %.4g, up to %d answer%s at once: %.3g ms per token, %s tok/s together.",
                bound_ms, n, n > 1 ? "s" : "", ms, json_rate(bound, rate, sizeof rate));
    else buf_fmt(line, " --max-tpot %.4g cannot be met: one answer at a time takes %.3g ms per token.", bound_ms, ms);
}

static void put_batch(struct plan_view *v, const struct json *b) {
    const struct json *policy = json_get(b, "policy");
    char read[16], decode[16], rate[32], line[500];
    if (!policy) return;
    put_heading(v, "Many prompts (--batch)");
    if (json_is(json_get(policy, "decode"), "paged")) {
        char longest[48], bound[48], cards[48] = "GPU";
        const int n = (int)json_int(json_get(policy, "cards"), 1);
        if (n > 1) snprintf(cards, sizeof cards, "%d GPUs, layers round-robin", n);
        snprintf(
            line, sizeof line,
            "Generates %s tok/s: %d prompts of %d tokens prefilled and decoded together in paged mode, %d tokens "
            "each, in "
            "micro-batches of %d; attention on the CPU, FFNs on the %s (%.0f %% of those paged stay there). A decode "
            "step takes %.3g s, the prefill %.3g s.",
            json_rate(b, rate, sizeof rate), (int)json_int(json_get(policy, "prompts"), 0),
            (int)json_int(json_get(b, "prompt"), 0), (int)json_int(json_get(b, "answer"), 0),
            (int)json_int(json_get(policy, "micro_batch"), 0), cards,
            100 * json_num(json_get(policy, "weights_on_cards"), 0), json_num(json_get(b, "step_s"), 0),
            json_num(json_get(b, "read_s"), 0));
        put_paragraph(v, line);
        snprintf(line, sizeof line, "Bottleneck of a layer: %s. Limit on concurrent prompts: %s.",
                 json_text(json_get(policy, "longest"), longest, sizeof longest),
                 json_text(json_get(policy, "no_more"), bound, sizeof bound));
        return put_paragraph(v, line);
    }
    snprintf(line, sizeof line,
             "Generates %s tok/s: %d prompts of %d tokens prefilled one after the other (%s), then %d tokens each, %d "
             "sessions at a time (%s).",
             json_rate(b, rate, sizeof rate), (int)json_int(json_get(policy, "prompts"), 0),
             (int)json_int(json_get(b, "prompt"), 0), json_text(json_get(policy, "read"), read, sizeof read),
             (int)json_int(json_get(b, "answer"), 0), (int)json_int(json_get(policy, "in_a_step"), 0),
             json_text(json_get(policy, "decode"), decode, sizeof decode));
    put_paragraph(v, line);
}

/* Formats milliseconds per token of each of `sessions` sessions as tokens/s of all. */
static const char *sessions_rate(const struct json *row, const char *key, char *out, size_t cap) {
    const double ms = json_num(json_get(row, key), 0);
    return ms > 0 ? amount_rate(1e3 * (double)json_int(json_get(row, "sessions"), 1) / ms, out, cap) : "-";
}
/* Prints one machine's figures: key_s names the seconds, key_ms the time per token, key_rate the rate of a batch. */
static void put_upgrade(struct plan_view *v, const char *what, const struct json *row, const char *key_s,
                        const char *key_ms, const char *key_rate) {
    const struct json *prefill = json_get(row, "prefill"), *decode = json_get(row, "decode");
    char a[32];
    buf_fmt(v->out, "  %-28s", what);
    for (uint32_t k = 0; prefill && k < prefill->n; k++)
        buf_fmt(v->out, " %9s", json_seconds(json_get(json_at(prefill, k), key_s), a, sizeof a));
    for (uint32_t k = 0; decode && k < decode->n; k++)
        buf_fmt(v->out, " %9s", sessions_rate(json_at(decode, k), key_ms, a, sizeof a));
    buf_fmt(v->out, " %9s\n", amount_rate(json_num(json_get(json_get(row, "batch"), key_rate), 0), a, sizeof a));
}
static void put_upgrades(struct plan_view *v, const struct json *rows) {
    const struct json *prefill = json_get(json_at(rows, 0), "prefill"), *decode = json_get(json_at(rows, 0), "decode");
    char what[48], a[32], head[48];
    if (!rows || !rows->n) return;
    put_heading(v, "With one upgrade: first token of a prompt by its tokens; tok/s of all sessions");
    buf_fmt(v->out, "  %-28s", "");
    for (uint32_t k = 0; prefill && k < prefill->n; k++)
        buf_fmt(v->out, " %9s", format_count(json_int(json_get(json_at(prefill, k), "tokens"), 0), a, sizeof a));
    for (uint32_t k = 0; decode && k < decode->n; k++) {
        const int n = (int)json_int(json_get(json_at(decode, k), "sessions"), 0);
        snprintf(head, sizeof head, "%d chat%s", n, n > 1 ? "s" : "");
        buf_fmt(v->out, " %9s", head);
    }
    buf_fmt(v->out, " %9s\n", "--batch");
    put_upgrade(v, "as it is", json_at(rows, 0), "now", "now", "now");
    for (uint32_t i = 0; i < rows->n; i++)
        put_upgrade(v, json_text(json_get(json_at(rows, i), "what"), what, sizeof what), json_at(rows, i), "seconds",
                    "tpot_ms", "tokens_per_s");
}

static void put_names(struct plan_view *v, const struct json *names) {
    struct buf all = {0};
    char name[64];
    for (uint32_t i = 0; i < names->n; i++)
        buf_fmt(&all, "%s%s", i ? ", " : "", json_text(json_at(names, i), name, sizeof name));
    if (!all.failed && all.data) put_paragraph(v, all.data);
    buf_free(&all);
}
static void put_list(struct plan_view *v, const struct json *root) {
    char name[64], what[96], weights[16];
    const struct json *machines = json_get(root, "machines"), *cards = json_get(root, "cards"),
                      *models = json_get(root, "models"), *formats = json_get(root, "formats");
    put_heading(v, "Machines; describe any other in a file, see MACHINES in the manual");
    for (uint32_t i = 0; i < machines->n; i++)
        buf_fmt(v->out, "  %-18s %s\n", json_text(json_get(json_at(machines, i), "name"), name, sizeof name),
                json_text(json_get(json_at(machines, i), "what"), what, sizeof what));
    put_heading(v, "Models, for --arch; any other with -m");
    for (uint32_t i = 0; i < models->n; i++) {
        const struct json *m = json_at(models, i);
        buf_fmt(v->out, "  %-18s %-24s %-8s %6.4g B parameters, %.3g B active per token\n",
                json_text(json_get(m, "name"), name, sizeof name), json_text(json_get(m, "title"), what, sizeof what),
                json_text(json_get(m, "weights"), weights, sizeof weights),
                json_num(json_get(m, "parameters"), 0) / 1e9, json_num(json_get(m, "active"), 0) / 1e9);
    }
    put_heading(v, "Formats, after a model's name as in qwen3-30b:q4_k_m");
    put_names(v, formats);
    put_heading(v, "GPUs that a machine file may name");
    put_names(v, cards);
}

/* Returns the row of this many tokens or sessions; NULL if the plan has none. */
static const struct json *find_row(const struct json *rows, const char *key, int64_t value) {
    for (uint32_t i = 0; rows && i < rows->n; i++)
        if (json_int(json_get(json_at(rows, i), key), -1) == value) return json_at(rows, i);
    return NULL;
}

static const char *chosen_time(const struct json *row, char *out, size_t cap) {
    char mode[16];
    return json_seconds(json_get(json_get(row, "modes"), json_text(json_get(row, "chosen"), mode, sizeof mode)), out,
                        cap);
}

/* Appends the upgrade that helps one answer most, if any helps by 3 % or more. */
static void put_best_upgrade(struct buf *line, const struct json *rows) {
    const struct json *best = NULL;
    double gain = 1.03;
    char what[48], a[32];
    for (uint32_t i = 0; rows && i < rows->n; i++) {
        const struct json *one = find_row(json_get(json_at(rows, i), "decode"), "sessions", 1);
        const double g = json_num(json_get(one, "now"), 0) / json_num(json_get(one, "tpot_ms"), INFINITY);
        if (g > gain) gain = g, best = json_at(rows, i);
    }
    if (!best) return;
    buf_fmt(line, " With %s: %s tok/s.", json_text(json_get(best, "what"), what, sizeof what),
            sessions_rate(find_row(json_get(best, "decode"), "sessions", 1), "tpot_ms", a, sizeof a));
}

/* Appends by how much published figures differed from such predictions. */
static void put_error(struct buf *line, const struct json *error) {
    const double decode = json_num(json_get(error, "decode"), 0), prefill = json_num(json_get(error, "prefill"), 0),
                 card = json_num(json_get(error, "card"), 0);
    if (decode > 0)
        buf_fmt(line,
                " Published figures of other programs differ from such predictions by up to %.0f %% (answers) and "
                "%.0f %% (prompts).",
                decode * 100, prefill * 100);
    if (card > 0)
        buf_fmt(line, " On the only card that has run hearth, an H100, answers took %.1f times as long as predicted.",
                card);
}

#define MEMORY_FOR_OTHERS 0.1 /* share of memory left to the KV cache and other programs */
/* Says whether memory holds the weights, and what would fit if not. */
static void put_headroom(struct buf *line, const struct json *fits) {
    const struct json *host = json_get(fits, "host");
    const double need = json_num(json_get(host, "bytes"), 0), have = json_num(json_get(host, "have"), 0),
                 n = json_num(json_get(fits, "parameters"), 0);
    char a[32];
    if (!(have > 0)) return;
    if (json_bool(json_get(host, "fits"), true)) {
        buf_fmt(line, " The weights fit in memory with %s to spare.",
                amount_bytes((uint64_t)(have - need), a, sizeof a));
        return;
    }
    buf_fmt(line, " The weights do not fit in memory: %s are missing.",
            amount_bytes((uint64_t)(need - have), a, sizeof a));
    const double bits = n > 0 ? (1 - MEMORY_FOR_OTHERS) * 8 * have / n : 0;
    if (bits >= 2)
        buf_fmt(line, " A format of at most %.1f bits per weight would fit; this one has %.1f.", bits, 8 * need / n);
    else buf_str(line, " No usual format of this model fits.");
}

/* Names programs that serve better if the cards hold the whole model. */
static void put_other_tools(struct buf *line, const struct json *fits) {
    const int64_t layers = json_int(json_get(fits, "layers"), 0);
    if (layers > 0 && json_int(json_get(fits, "resident_layers"), 0) == layers &&
        json_int(json_get(fits, "expert_layers"), -1) == layers)
        buf_str(line, " All of the model fits on the cards: vLLM and llama.cpp are made for that, and faster "
                      "there today.");
}

/* Answers first what a reader wants to know: how fast, does it fit, what limits it and what would help. */
static void put_verdict(struct plan_view *v, const struct json *root) {
    const struct json *rows = json_get(root, "prefill"), *batch = json_get(root, "batch"),
                      *one = find_row(json_get(root, "decode"), "sessions", 1);
    const struct json *shown[] = {find_row(rows, "tokens", 2048), find_row(rows, "tokens", 32768)};
    char a[32], b[32];
    struct buf line = {0};
    if (one && rows && rows->n) {
        if (!shown[0]) shown[0] = json_at(rows, 0);
        if (!shown[1]) shown[1] = json_at(rows, rows->n - 1);
        buf_fmt(&line, "One answer runs at %s tok/s, limited by the %s;", json_rate(one, a, sizeof a),
                json_text(json_get(one, "limit"), b, sizeof b));
        for (int i = 0; i < 2 && (!i || shown[1] != shown[0]); i++)
            buf_fmt(&line, "%s a prompt of %s tokens takes %s", i ? "," : "",
                    format_count(json_int(json_get(shown[i], "tokens"), 0), a, sizeof a),
                    chosen_time(shown[i], b, sizeof b));
        buf_str(&line, ".");
    }
    put_max_tpot(&line, json_get(root, "max_tpot"));
    put_headroom(&line, json_get(root, "fits"));
    put_other_tools(&line, json_get(root, "fits"));
    if (json_num(json_get(batch, "tokens_per_s"), 0) > 0)
        buf_fmt(&line, " Many prompts together run at %s tok/s.", json_rate(batch, a, sizeof a));
    put_best_upgrade(&line, json_get(root, "more"));
    put_error(&line, json_get(root, "error"));
    if (!line.failed && line.data) put_paragraph(v, line.data + (*line.data == ' '));
    buf_free(&line);
}

static void put_plan(struct plan_view *v, const struct json *root) {
    char machine[128], model[64];
    if (json_get(root, "machines")) return put_list(v, root);
    buf_fmt(v->out,
            v->color ? "\033[1m%s\033[0m with %s: modelled, not measured\n" : "%s with %s: modelled, not measured\n",
            json_text(json_get(root, "machine"), machine, sizeof machine),
            json_text(json_get(root, "model"), model, sizeof model));
    put_verdict(v, root);
    put_fits(v, json_get(root, "fits"));
    put_nodes(v, json_get(root, "nodes"), json_at(json_path(root, "fits.cards"), 0));
    if (v->verbose) put_prefill(v, json_get(root, "prefill"));
    put_plot(v, json_get(root, "prefill"));
    if (v->verbose) put_decode(v, json_get(root, "decode")), put_batch(v, json_get(root, "batch"));
    put_upgrades(v, json_get(root, "more"));
}

/* --measure: one line that somebody can send. */
static void put_comparison(struct buf *out, bool json, const char *what, double predicted, double measured) {
    char p[32], m[32];
    if (!(predicted > 0) || !(measured > 0)) return;
    if (json)
        buf_fmt(out, ", \"%s\": {\"predicted\": %.3f, \"measured\": %.3f, \"share\": %.3f}", what, predicted, measured,
                measured / predicted);
    else
        buf_fmt(out, "; %s %s tok/s predicted, %s measured (%.2f)", what, amount_rate(predicted, p, sizeof p),
                amount_rate(measured, m, sizeof m), measured / predicted);
}
static int put_measured(struct app *a, const struct json *root, struct buf *out, struct error *e) {
    enum { KEYS = 1024, PROMPT = 2048 }; /* as a plan's first answer, and one of its prompts */
    char mode[16], model[64], machine[160];
    double answer, read;
    const bool json = a->opts.v[OPT_JSON].on;
    const struct json *prompt = find_row(json_get(root, "prefill"), "tokens", PROMPT);
    const double seconds =
        prompt
            ? json_num(json_get(json_get(prompt, "modes"), json_text(json_get(prompt, "chosen"), mode, sizeof mode)), 0)
            : 0;
    TRY(open_engine(a, e));
    progress_begin("measuring");
    int rc = bench_measure(a, KEYS, PROMPT, &answer, &read, e);
    progress_clear();
    if (rc) return rc;
    const struct engine_info *i = engine_info(a->engine);
    const struct json *cards = json_path(root, "fits.cards");
    json_text(json_path(root, "fits.host.name"), machine, sizeof machine);
    for (uint32_t k = 0; cards && k < cards->n; k++) {
        char name[48];
        const size_t at = strlen(machine);
        snprintf(machine + at, sizeof machine - at, " + %s",
                 json_text(json_get(json_at(cards, k), "name"), name, sizeof name));
    }
    json_text(json_get(root, "model"), model, sizeof model);
    char threads[32];
    if (json) {
        buf_fmt(out, "{\"hearth\": \"%s\", \"machine\": ", HEARTH_VERSION);
        out_json_string(out, machine, strlen(machine));
        buf_fmt(out, ", \"threads\": %d, \"level\": \"%s\", \"model\": ", i->threads, i->level);
        out_json_string(out, i->name, strlen(i->name));
    } else
        buf_fmt(out, "hearth %s on %s, %s, %s, with %s (%s)", HEARTH_VERSION, machine,
                amount_count(i->threads, "thread", threads, sizeof threads), i->level, i->name, model);
    put_comparison(out, json, json ? "answer" : "answers",
                   json_num(json_get(json_at(json_get(root, "decode"), 0), "tokens_per_s"), 0), answer);
    put_comparison(out, json, json ? "prompt" : "a prompt of 2,048 tokens", seconds > 0 ? PROMPT / seconds : 0, read);
    buf_str(out, json ? "}\n" : "\n");
    return out->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

int plan_run(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct engine_params p;
    struct buf json = {0}, text = {0};
    struct arena arena = {0};
    struct json root;
    char cache_dir[PATHS_MAX];
    const bool measures = v[OPT_MEASURE].on, has_model = measures || (v[OPT_MODEL].text && !v[OPT_ARCH].text);
    int rc = 0, rows;
    if (v[OPT_ARCH].origin == ORIGIN_FLAG && v[OPT_MODEL].origin == ORIGIN_FLAG)
        rc = error_set(e, ERR_USAGE, "--arch and -m cannot be combined: both select the model");
    if (!rc && has_model) rc = open_find_model(a, e);
    engine_client_local_params(a, &p);
    if (!has_model) p.dir = NULL;
    if (!paths_make(PATHS_CACHE, "machine", cache_dir, sizeof cache_dir, &(struct error){0}))
        *strrchr(cache_dir, '/') = 0, p.calibration_dir = cache_dir;
    progress_begin("planning");
    if (!rc) rc = engine_plan(&p, v[OPT_PLAN].text, v[OPT_ARCH].text, &json, e);
    progress_clear();
    if (!rc && measures) {
        rc = json_parse(&arena, json.data, json.len, 0, "plan", &root, e);
        if (!rc) rc = put_measured(a, &root, &text, e);
        if (!rc) out_write(text.data, text.len);
    } else if (!rc && v[OPT_JSON].on) buf_char(&json, '\n'), out_write(json.data, json.len);
    else if (!rc && !(rc = json_parse(&arena, json.data, json.len, 0, "plan", &root, e))) {
        struct plan_view view = {.out = &text, .color = a->color_out, .verbose = v[OPT_VERBOSE].on, .width = 80};
        if (a->tty_out) term_size(&rows, &view.width);
        put_plan(&view, &root);
        rc = text.failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
        if (!rc) (a->tty_out ? (void)out_draw(1, text.data, text.len) : (void)out_write(text.data, text.len));
    }
    arena_free(&arena);
    buf_free(&json);
    buf_free(&text);
    return rc;
}
