#include "engine/sched/policy.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A mode that uses more of the machine must be at least this much faster. */
static const double worth = 0.97;
/* Modes by increasing use of the machine, and the slowdown of concurrent decode: a CPU prefill takes half of the speed, a weight
 * stream 15% (paper A). */
static const struct {
    enum policy_mode mode;
    double disturbs;
} by_price[] = {{POLICY_CPU, 0.5}, {POLICY_SLP, 0.15}, {POLICY_BLEND, 0.5}, {POLICY_DSLP, 0.15}};
/* An added session must bring at least this fraction of the previous per-session throughput. */
static const double pays = 0.5;

static const char *const prefills[POLICY_MODES] = {"auto", "cpu", "blend", "slp", "dslp"};
static const char *const decodes[POLICY_DECODES] = {"auto", "cpu", "hybrid", "dual", "paged"};
const char *policy_name(enum policy_mode m) { return prefills[m]; }
const char *policy_decode_name(enum policy_decode m) { return decodes[m]; }
static int find(const char *const *names, int n, const char *name) {
    int i = 0;
    while (i < n && strcmp(names[i], name)) i++;
    return i;
}
enum policy_mode policy_find(const char *name) { return (enum policy_mode)find(prefills, POLICY_MODES, name); }
enum policy_decode policy_decode_find(const char *name) { return (enum policy_decode)find(decodes, POLICY_DECODES, name); }

static void __attribute__((format(printf, 3, 4))) say(char *why, size_t cap, const char *fmt, ...) { /* appends */
    size_t n = strlen(why);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why + n, cap - n, fmt, ap);
    va_end(ap);
}
/* "expected 1.30 s; cpu 4.20 s, slp 11.8 s" */
static void say_times(char *why, size_t cap, const char *const *names, const double *seconds, int n, int chosen) {
    const char *sep = "; ";
    for (int k = -1; k < n; k++) {
        int i = k < 0 ? chosen : k;
        double t = seconds[i];
        if ((k >= 0 && i == chosen) || !(t > 0) || isinf(t)) continue;
        if (k < 0) say(why, cap, "expected ");
        else say(why, cap, "%s%s ", sep, names[i]);
        say(why, cap, t < 1 ? "%.3g ms" : "%.3g s", t < 1 ? t * 1e3 : t);
        if (k >= 0) sep = ", ";
    }
}

static bool known(const struct policy_machine *m) { return m->cost && m->model; }
static int devices(const struct policy_machine *m) { return m->lost ? 0 : m->n_devices < POLICY_DEVICES ? m->n_devices : POLICY_DEVICES; }

/* --- Prefill ---------------------------------------------------------------------------------------------------------- */

/* Device for a streamed prefill: unused by decode if possible, then the one with the most free memory. -1: none. */
static int stream_to(const struct policy_machine *m, const struct policy_in *in) {
    int best = -1;
    for (int i = 0; i < devices(m); i++) {
        if (m->free[i] < in->need[POLICY_SLP]) continue;
        if (best < 0 || (m->holds[i] == m->holds[best] ? m->free[i] > m->free[best] : m->holds[best])) best = i;
    }
    return best;
}

/* Whether a blend runs layers on the device: where decode does, or would. */
static bool has_layers(const struct policy_machine *m, int device) {
    bool any = false;
    for (int i = 0; i < devices(m); i++) any |= m->holds[i];
    return any ? m->holds[device] : !device;
}
/* Number of devices that would take part in a blend; 0: not possible. */
static int blenders(const struct policy_machine *m, const struct policy_in *in) {
    int n = 0;
    for (int i = 0; i < devices(m); i++) {
        double room = m->free[i] - m->stays[i];
        if (has_layers(m, i) && room < in->need[POLICY_BLEND]) return 0;
        n += has_layers(m, i) || room >= in->need_help;
    }
    return n;
}

/* Why a mode cannot prefill this prompt, or may not unless forced; NULL: it can. blend: devices that would take part in a blend. */
static const char *cannot(const struct policy_machine *m, const struct policy_in *in, enum policy_mode mode, bool asked, int blend) {
    int n = devices(m), short_of = 0;
    if (mode == POLICY_CPU) return NULL;
    if (m->lost) return "a device was lost";
    if (!n) return "no device";
    if (!(m->prefills >> mode & 1)) return "not with the current device contents";
    for (int i = 0; i < n; i++) short_of += m->free[i] < in->need[mode];
    if (mode == POLICY_SLP ? stream_to(m, in) < 0 : mode == POLICY_BLEND && !blend) return "too little memory free on the device";
    if (mode == POLICY_BLEND && !known(m) && !asked) return "the machine is not calibrated";
    if (mode != POLICY_DSLP) return NULL;
    if (n < 2) return "one device";
    if (short_of) return short_of < n ? "too little memory free on one of the devices" : "too little memory free on the devices";
    if (asked) return NULL;
    if (in->decoding) return "a session is decoding";
    if (in->since_decode_s >= 0 && in->since_decode_s < POLICY_WINDOW_S) return "a session decoded recently";
    return NULL;
}

static double expect(const struct policy_machine *m, const struct policy_in *in, enum policy_mode mode, int blend) {
    struct cost_prefill p = {.how = COST_PREFILL_CPU + (mode - POLICY_CPU),
                             .n = in->n_new,
                             .pos = in->n_cached,
                             .ranks = mode == POLICY_BLEND ? blend : devices(m),
                             .decoding = in->decoding,
                             .keys = in->keys,
                             .resident = in->dense_resident};
    if (mode == POLICY_SLP || mode == POLICY_DSLP) p.decoding = 0; /* decoding sessions run elsewhere */
    return cost_prefill(m->cost, m->model, &p);
}

void policy_prefill(const struct policy_machine *m, const struct policy_in *in, struct policy_out *out) {
    *out = (struct policy_out){.mode = POLICY_CPU};
    const size_t cap = sizeof out->why;
    const char *refused[POLICY_MODES] = {0}, *of_asked = NULL;
    const int to = stream_to(m, in), blend = devices(m) ? blenders(m, in) : 0;
    out->device = to < 0 ? 0 : to;
    if (in->queued > 0) {
        out->mode = POLICY_AUTO;
        out->wait = true;
        return say(out->why, cap, "first come, first served: %d prompt%s before it", in->queued, in->queued > 1 ? "s" : "");
    }
    for (int i = POLICY_CPU; i < POLICY_MODES; i++) {
        refused[i] = cannot(m, in, (enum policy_mode)i, m->ask == (enum policy_mode)i, blend);
        if (known(m)) out->seconds[i] = refused[i] ? INFINITY : expect(m, in, (enum policy_mode)i, blend);
    }
    if (m->ask > POLICY_AUTO && m->ask < POLICY_MODES) {
        of_asked = refused[m->ask];
        if (!of_asked) {
            out->mode = m->ask;
            out->ranks = out->mode == POLICY_BLEND ? blend : devices(m);
            return say(out->why, cap, "requested");
        }
        say(out->why, cap, "%s was requested, but: %s; ", prefills[m->ask], of_asked);
    }
    if (refused[POLICY_SLP] && refused[POLICY_BLEND] && refused[POLICY_DSLP]) return say(out->why, cap, "%s", refused[POLICY_SLP]);
    if (known(m)) {
        double least = INFINITY; /* cost to this prompt and the decoding sessions together */
        for (int k = 0; k < (int)(sizeof by_price / sizeof *by_price); k++) {
            double lost = out->seconds[by_price[k].mode] * (1 + in->decoding * by_price[k].disturbs);
            if (lost < least * worth) least = lost, out->mode = by_price[k].mode;
        }
        say_times(out->why, cap, prefills, out->seconds, POLICY_MODES, out->mode);
    } else {
        if (in->n_new >= POLICY_CROSSOVER && !refused[POLICY_SLP]) out->mode = refused[POLICY_DSLP] ? POLICY_SLP : POLICY_DSLP;
        say(out->why, cap, "%s than %d tokens, where streaming is assumed to become faster", in->n_new < POLICY_CROSSOVER ? "shorter" : "not shorter",
            POLICY_CROSSOVER);
    }
    out->ranks = out->mode == POLICY_BLEND ? blend : devices(m);
    if (out->mode == POLICY_SLP && refused[POLICY_DSLP] && devices(m) > 1) say(out->why, cap, "; not on all devices: %s", refused[POLICY_DSLP]);
}

/* --- Decode ----------------------------------------------------------------------------------------------------------- */

static double step_time(const struct policy_machine *m, const struct policy_decode_in *in, enum policy_decode mode, int rows, int layers, int *cut) {
    struct cost_step s = {
        .how = COST_STEP_CPU + (mode - POLICY_DECODE_CPU), .rows = rows, .keys = in->keys, .on_device = layers, .beside = in->beside, .ranks = m->ranks};
    if (mode == POLICY_DECODE_DUAL) *cut = s.cut = cost_cut(m->cost, m->model, &s);
    return cost_step(m->cost, m->model, &s);
}

/* Picks the fastest mode that is not refused for `rows` sessions; returns its time and fills those of all modes. */
static double best_step(const struct policy_machine *m, const struct policy_decode_in *in, int rows, struct policy_decode_out *out) {
    const char *const *refused = out->refused;
    enum policy_decode asked =
        m->ask_decode > POLICY_DECODE_AUTO && m->ask_decode < POLICY_DECODES && !refused[m->ask_decode] ? m->ask_decode : POLICY_DECODE_AUTO;
    out->mode = asked ? asked : POLICY_DECODE_CPU;
    for (int i = POLICY_DECODE_CPU; i < POLICY_DECODES; i++) {
        bool one = i == POLICY_DECODE_DUAL && rows < 2;
        out->seconds[i] = refused[i] || one ? INFINITY : step_time(m, in, (enum policy_decode)i, rows, out->layers, &out->cut);
        if (!asked && out->seconds[i] < out->seconds[out->mode] * worth) out->mode = (enum policy_decode)i;
    }
    if (out->mode == POLICY_DECODE_DUAL && rows < 2) out->mode = POLICY_DECODE_HYBRID; /* forced, but there is only one session */
    if (out->mode != POLICY_DECODE_DUAL) out->cut = 0;
    return out->seconds[out->mode];
}

void policy_parallel(const struct cost_machine *cost, const struct cost_model *model, int ranks, struct policy_parallel_out *out) {
    double sum[2];
    for (int tensor = 0; tensor < 2; tensor++) {
        double *read = &out->question[tensor];
        *read = INFINITY;
        for (int how = COST_PREFILL_CPU; how <= COST_PREFILL_DSLP; how++) {
            double t = how == COST_PREFILL_BLEND && tensor
                           ? INFINITY
                           : cost_prefill(cost, model,
                                          &(struct cost_prefill){
                                              .how = (enum cost_whole)how, .n = POLICY_QUESTION, .ranks = ranks, .resident = how == COST_PREFILL_BLEND});
            if (t < *read) *read = t;
        }
        out->step[tensor] = cost_step(
            cost, model,
            &(struct cost_step){
                .how = COST_STEP_HYBRID, .rows = 1, .keys = POLICY_QUESTION + POLICY_ANSWER / 2, .on_device = model->layers, .ranks = tensor ? ranks : 1});
        sum[tensor] = *read + POLICY_ANSWER * out->step[tensor];
    }
    out->tensor = sum[1] < sum[0] * worth;
}

void policy_step(const struct policy_machine *m, const struct policy_decode_in *in, struct policy_decode_out *out) {
    *out = (struct policy_decode_out){.mode = POLICY_DECODE_CPU};
    int n = in->decoding < in->most ? in->decoding : in->most, b = n < POLICY_BATCH ? n : POLICY_BATCH;
    out->batch = b;
    if (!known(m)) {
        out->batch = n;
        return;
    }
    out->layers = m->layers;
    for (int i = 0; i < devices(m) && !m->layers; i++) out->layers += cost_layers_fit(m->model, m->free[i], in->context * b);
    if (out->layers > m->model->layers) out->layers = m->model->layers;
    const char **refused = out->refused;
    refused[POLICY_DECODE_PAGED] = "paged mode is for throughput batches"; /* search.h */
    for (int i = POLICY_DECODE_HYBRID; i < POLICY_DECODE_PAGED; i++)
        refused[i] = m->lost                  ? "a device was lost"
                     : !devices(m)            ? "no device"
                     : m->away                ? "the devices are in use by a prefill"
                     : !(m->decodes >> i & 1) ? "not with the current device contents"
                     : !out->layers           ? "no layer's attention block fits on the device"
                                              : NULL;
    if (refused[POLICY_DECODE_HYBRID]) refused[POLICY_DECODE_DUAL] = refused[POLICY_DECODE_HYBRID];
    double now = best_step(m, in, b, out);
    while (b < n) {
        struct policy_decode_out more = *out;
        double then = best_step(m, in, b + 1, &more);
        if ((b + 1) / then - b / now < pays / now) break;
        *out = more, now = then, out->batch = ++b;
    }
}

void policy_step_why(const struct policy_machine *m, const struct policy_decode_in *in, const struct policy_decode_out *out, char *why, size_t cap) {
    const char *const *refused = out->refused;
    enum policy_decode asked = m->ask_decode;
    *why = 0;
    if (!known(m)) return say(why, cap, m->n_devices ? "the machine is not calibrated" : "no device");
    if (asked > POLICY_DECODE_AUTO && asked < POLICY_DECODES) {
        if (asked == out->mode) say(why, cap, "requested");
        else say(why, cap, "%s was requested, but: %s", decodes[asked], refused[asked] ? refused[asked] : "one session");
        say(why, cap, "; ");
    } else if (refused[POLICY_DECODE_HYBRID]) say(why, cap, "%s; ", refused[POLICY_DECODE_HYBRID]);
    say_times(why, cap, decodes, out->seconds, POLICY_DECODES, out->mode);
    if (out->mode != POLICY_DECODE_CPU && out->layers < m->model->layers) say(why, cap, "; %d of %d layers fit on the devices", out->layers, m->model->layers);
    if (in->decoding > out->batch) say(why, cap, "; %d of %d sessions at once", out->batch, in->decoding);
}
