#include "engine/placement/policy.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A mode that uses more of the machine must be at least this much faster. */
static const double MIN_GAIN = 0.97;
static const double MIN_SLICE_GAIN = 1.15; /* of time slices, whose tokens come less evenly */
/* Modes by increasing use of the machine, and the slowdown of concurrent decode: a CPU prefill takes half of the speed,
 * a weight stream 15% (paper A). */
static const struct {
    enum exec_mode mode;
    double disturbs;
} modes_by_cost[] = {{PREFILL_CPU, 0.5}, {PREFILL_SLP, 0.15}, {PREFILL_BLEND, 0.5}, {PREFILL_DSLP, 0.15}};
/* An added session must bring at least this fraction of the previous per-session throughput. */
static const double MIN_SESSION_GAIN = 0.5;

/* appends */
static void __attribute__((format(printf, 3, 4))) append_why(char *why, size_t cap, const char *fmt, ...) {
    size_t n = strlen(why);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why + n, cap - n, fmt, ap);
    va_end(ap);
}
/* "expected 1.30 s; cpu 4.20 s, slp 11.8 s" */
static void append_times(char *why, size_t cap, const double seconds[EXEC_MODES], enum exec_mode chosen) {
    const char *sep = "; ";
    for (int k = -1; k < EXEC_MODES; k++) {
        int i = k < 0 ? (int)chosen : k;
        double t = seconds[i];
        if ((k >= 0 && i == (int)chosen) || !(t > 0) || isinf(t)) continue;
        if (k < 0) append_why(why, cap, "expected ");
        else append_why(why, cap, "%s%s ", sep, exec_modes[i].name);
        append_why(why, cap, t < 1 ? "%.3g ms" : "%.3g s", t < 1 ? t * 1e3 : t);
        if (k >= 0) sep = ", ";
    }
}

static bool is_calibrated(const struct policy_machine *m) { return m->cost && m->model; }
static int usable_devices(const struct policy_machine *m) {
    return m->is_lost ? 0 : m->n_devices < POLICY_DEVICES ? m->n_devices : POLICY_DEVICES;
}

/* --- Prefill ---------------------------------------------------------------------------------- */

/* Whether device i is a better choice than device `than` for a streamed prefill. While sessions decode, a device that
 * they do not use is preferred; then the one that holds more of the weights, then the one with more free memory. */
static bool streams_better(const struct policy_machine *m, int i, int than, bool decoding) {
    if (decoding && m->decode_uses[i] != m->decode_uses[than]) return m->decode_uses[than];
    if (m->expert_layers[i] != m->expert_layers[than]) return m->expert_layers[i] > m->expert_layers[than];
    if (m->dense_layers[i] != m->dense_layers[than]) return m->dense_layers[i] > m->dense_layers[than];
    return m->free[i] > m->free[than];
}
/* Device for a streamed prefill; -1: none. */
static int stream_device(const struct policy_machine *m, const struct policy_prefill_in *in) {
    int best = -1;
    for (int i = 0; i < usable_devices(m); i++)
        if (m->free[i] >= in->need_bytes[PREFILL_SLP] && (best < 0 || streams_better(m, i, best, in->n_decoding > 0)))
            best = i;
    return best;
}

/* Whether a blend runs layers on the device: where decode does, or would. */
static bool has_layers(const struct policy_machine *m, int device) {
    bool any = false;
    for (int i = 0; i < usable_devices(m); i++) any |= m->decode_uses[i];
    return any ? m->decode_uses[device] : !device;
}
/* Number of devices that would take part in a blend; 0: not possible. */
static int count_blend_devices(const struct policy_machine *m, const struct policy_prefill_in *in) {
    int n = 0;
    for (int i = 0; i < usable_devices(m); i++) {
        double room = m->free[i] - m->blend_stays[i];
        if (has_layers(m, i) && room < in->need_bytes[PREFILL_BLEND]) return 0;
        n += has_layers(m, i) || room >= in->helper_need_bytes;
    }
    return n;
}

/* Mean seconds per token of the decoding sessions beside a streamed or blended prefill, which takes host memory
 * bandwidth and evicts resident experts. */
static double tpot_beside(const struct policy_machine *m, const struct policy_prefill_in *in, enum exec_mode mode) {
    struct policy_machine rest = *m;
    struct policy_decode_out out;
    const double layer_bytes = m->model->n_experts * m->model->expert_bytes;
    for (int i = 0; i < usable_devices(m); i++) {
        const double lacks = in->need_bytes[mode] - (m->free[i] - m->held[i]);
        if (lacks <= 0 || (mode == PREFILL_SLP && i != stream_device(m, in))) continue;
        if (lacks > m->expert_layers[i] * layer_bytes) rest.is_yielded |= m->decode_uses[i];
        else rest.n_expert_layers -= (int)ceil(lacks / layer_bytes);
    }
    policy_decode_batch(&rest,
                        &(struct policy_decode_in){.n_decoding = in->n_decoding,
                                                   .max_rows = in->n_decoding,
                                                   .keys = in->keys,
                                                   .context_tokens = in->keys + POLICY_EXPECTED_GROWTH,
                                                   .beside_prefill = true},
                        &out);
    return out.tpot_s;
}

static double expected_prefill_s(const struct policy_machine *m, const struct policy_prefill_in *in,
                                 enum exec_mode mode, int blend);

/* Whether another session is likely to ask again before all devices have read this prompt. */
static bool may_be_interrupted(const struct policy_machine *m, const struct policy_prefill_in *in) {
    const double window =
        is_calibrated(m) ? fmin(POLICY_WINDOW_S, expected_prefill_s(m, in, PREFILL_DSLP, 0)) : POLICY_WINDOW_S;
    return in->since_decode_s >= 0 && in->since_decode_s < window;
}

/* Why a mode cannot prefill this prompt, or may not unless forced; NULL: it can. blend: devices that would take part in
 * a blend. */
static const char *refusal(const struct policy_machine *m, const struct policy_prefill_in *in, enum exec_mode mode,
                           bool asked, int blend) {
    int n = usable_devices(m), short_of = 0;
    if (mode == PREFILL_CPU) return NULL;
    if (m->is_lost) return "a device was lost";
    if (!n) return "no device";
    if (!(m->prefill_mask >> mode & 1)) return "not with the current device contents";
    for (int i = 0; i < n; i++) short_of += m->free[i] < in->need_bytes[mode];
    if (mode == PREFILL_SLP ? stream_device(m, in) < 0 : mode == PREFILL_BLEND && !blend)
        return "too little memory free on the device";
    if (mode == PREFILL_BLEND && !is_calibrated(m) && !asked) return "the machine is not calibrated";
    if (mode != PREFILL_DSLP)
        return !asked && m->max_tpot_s > 0 && in->n_decoding && is_calibrated(m) &&
                       tpot_beside(m, in, mode) > m->max_tpot_s
                   ? "answers beside it would be too slow (--max-tpot)"
                   : NULL;
    if (n < 2) return "one device";
    if (m->why_unsplittable) return m->why_unsplittable;
    if (short_of)
        return short_of < n ? "too little memory free on one of the devices" : "too little memory free on the devices";
    if (asked) return NULL;
    if (in->n_decoding) return "a session is decoding";
    if (may_be_interrupted(m, in)) return "another session decoded recently";
    return NULL;
}

static double expected_prefill_s(const struct policy_machine *m, const struct policy_prefill_in *in,
                                 enum exec_mode mode, int blend) {
    struct cost_prefill p = {.mode = mode,
                             .n = in->n_new,
                             .pos = in->n_cached,
                             .ranks = mode == PREFILL_BLEND ? blend : usable_devices(m),
                             .n_decoding = in->n_decoding,
                             .keys = in->keys,
                             .is_resident = in->dense_resident,
                             .n_expert_layers = m->n_expert_layers};
    if (mode == PREFILL_SLP || mode == PREFILL_DSLP) { /* decoding sessions run elsewhere */
        const int device = stream_device(m, in);
        p.n_decoding = 0;
        /* DSLP: a rank that keeps a layer waits for the others to upload theirs */
        p.n_dense_layers = mode == PREFILL_SLP ? m->dense_layers[device] : 0;
        p.n_expert_layers = mode == PREFILL_SLP ? m->expert_layers[device] : 0;
    }
    return cost_prefill(m->cost, m->model, &p);
}

void policy_prefill(const struct policy_machine *m, const struct policy_prefill_in *in,
                    struct policy_prefill_out *out) {
    *out = (struct policy_prefill_out){.mode = PREFILL_CPU};
    const size_t cap = sizeof out->why;
    const char *refused[EXEC_MODES] = {0}, *of_asked = NULL;
    const int to = stream_device(m, in), blend = usable_devices(m) ? count_blend_devices(m, in) : 0;
    out->device = to < 0 ? 0 : to;
    if (in->n_queued > 0) {
        out->mode = MODE_AUTO;
        out->must_wait = true;
        return append_why(out->why, cap, "first come, first served: %d prompt%s before it", in->n_queued,
                          in->n_queued > 1 ? "s" : "");
    }
    for (int i = PREFILL_CPU; i <= PREFILL_DSLP; i++) {
        refused[i] = refusal(m, in, (enum exec_mode)i, m->forced_prefill == (enum exec_mode)i, blend);
        if (is_calibrated(m))
            out->seconds[i] = refused[i] ? INFINITY : expected_prefill_s(m, in, (enum exec_mode)i, blend);
    }
    if (m->forced_prefill) {
        of_asked = refused[m->forced_prefill];
        if (!of_asked) {
            out->mode = m->forced_prefill;
            out->ranks = out->mode == PREFILL_BLEND ? blend : usable_devices(m);
            return append_why(out->why, cap, "requested");
        }
        append_why(out->why, cap, "%s was requested, but: %s; ", exec_mode_name(m->forced_prefill), of_asked);
    }
    if (refused[PREFILL_SLP] && refused[PREFILL_BLEND] && refused[PREFILL_DSLP])
        return append_why(out->why, cap, "%s", refused[PREFILL_SLP]);
    if (is_calibrated(m)) {
        double least = INFINITY; /* cost to this prompt and the decoding sessions together */
        for (int k = 0; k < (int)(sizeof modes_by_cost / sizeof *modes_by_cost); k++) {
            double lost = out->seconds[modes_by_cost[k].mode] * (1 + in->n_decoding * modes_by_cost[k].disturbs);
            if (lost < least * MIN_GAIN) least = lost, out->mode = modes_by_cost[k].mode;
        }
        append_times(out->why, cap, out->seconds, out->mode);
    } else {
        if (in->n_new >= POLICY_STREAM_TOKENS && !refused[PREFILL_SLP])
            out->mode = refused[PREFILL_DSLP] ? PREFILL_SLP : PREFILL_DSLP;
        append_why(out->why, cap, "%s than %d tokens, where streaming is assumed to become faster",
                   in->n_new < POLICY_STREAM_TOKENS ? "shorter" : "not shorter", POLICY_STREAM_TOKENS);
    }
    out->ranks = out->mode == PREFILL_BLEND ? blend : usable_devices(m);
    if (out->mode == PREFILL_SLP && refused[PREFILL_DSLP] && usable_devices(m) > 1)
        append_why(out->why, cap, "; not on all devices: %s", refused[PREFILL_DSLP]);
}

bool policy_may_pass(const struct policy_pass_in *in, const struct policy_passed *p) {
    const double meaningful = 0.1; /* share after which the measured rate tells more than the expected one */
    const double measured_s = p->share > 0 ? p->own_s / p->share : 0,
                 total_s = measured_s > 0 && (p->share >= meaningful || !(p->expected_s > 0))
                               ? measured_s
                               : fmax(p->expected_s, p->own_s);
    double pass_s = in->expected_s;
    if (pass_s < 0 && p->is_on_cpu && p->n > 0) pass_s = total_s * in->n / p->n;
    else if (p->is_on_cpu && p->share >= meaningful && p->expected_s > 0) pass_s *= measured_s / p->expected_s;
    return total_s > 0 && pass_s >= 0 && pass_s < total_s * (1 - p->share) && p->lost_s + pass_s <= total_s;
}

bool policy_may_join(int n, double group_s, double alone_s, double joined_s) {
    const double gain = 0.25; /* of its own time: less is not worth a wait of the others */
    /* how much longer first tokens may take on average than one after the other, the shorter side first: prompts of one
     * length gain, but a short one should not wait for a long one */
    const double wait = 1.25;
    const double after = n * group_s + group_s + alone_s, before = alone_s + n * (alone_s + group_s);
    return joined_s <= group_s + (1 - gain) * alone_s && (n + 1) * joined_s <= wait * fmin(after, before);
}

/* --- Decode ----------------------------------------------------------------------------------- */

static double expected_decode_s(const struct policy_machine *m, const struct policy_decode_in *in, enum exec_mode mode,
                                int rows, int layers, int *cut) {
    struct cost_decode s = {.mode = mode,
                            .rows = rows,
                            .keys = in->keys,
                            .n_device_layers = layers,
                            .n_expert_layers = m->n_expert_layers,
                            .resident_share = m->resident_share,
                            .sends_experts = m->sends_experts,
                            .moves_experts = m->moves_experts,
                            .beside_prefill = in->beside_prefill,
                            .ranks = m->ranks};
    if (mode == DECODE_DUAL) *cut = s.first_rows = cost_best_cut(m->cost, m->model, &s);
    return cost_decode(m->cost, m->model, &s);
}

/* Picks the fastest mode that is not refused for `rows` sessions; returns its time and fills those of all modes. gain:
 * how much faster a mode that uses more of the machine must be. */
static double best_decode(const struct policy_machine *m, const struct policy_decode_in *in, int rows, double gain,
                          struct policy_decode_out *out) {
    const char *const *refused = out->refused;
    const enum exec_mode asked = refused[m->forced_decode] ? MODE_AUTO : m->forced_decode;
    out->mode = asked ? asked : DECODE_CPU;
    for (int i = DECODE_CPU; i <= DECODE_PAGED; i++) {
        bool one = i == DECODE_DUAL && rows < 2;
        out->seconds[i] = refused[i] || one ? INFINITY
                                            : expected_decode_s(m, in, (enum exec_mode)i, rows, out->n_device_layers,
                                                                &out->first_rows);
        if (!asked && out->seconds[i] < out->seconds[out->mode] * gain) out->mode = (enum exec_mode)i;
    }
    if (out->mode == DECODE_DUAL && rows < 2) out->mode = DECODE_HYBRID; /* forced, but there is only one session */
    if (out->mode != DECODE_DUAL) out->first_rows = 0;
    return out->seconds[out->mode];
}

void policy_parallel(const struct cost_machine *cost, const struct cost_model *model, int ranks, int n_expert_layers,
                     struct policy_parallel_out *out) {
    double sum[2];
    for (int tensor = 0; tensor < 2; tensor++) {
        double *read = &out->question[tensor];
        *read = INFINITY;
        for (int how = PREFILL_CPU; how <= PREFILL_DSLP; how++) {
            double t = how == PREFILL_BLEND && tensor
                           ? INFINITY
                           : cost_prefill(
                                 cost, model,
                                 &(struct cost_prefill){.mode = (enum exec_mode)how,
                                                        .n = POLICY_QUESTION,
                                                        .ranks = ranks,
                                                        .is_resident = how == PREFILL_BLEND,
                                                        .n_expert_layers = how == PREFILL_BLEND ? n_expert_layers : 0});
            if (t < *read) *read = t;
        }
        out->step[tensor] = cost_decode(cost, model,
                                        &(struct cost_decode){.mode = DECODE_HYBRID,
                                                              .rows = 1,
                                                              .keys = POLICY_QUESTION + POLICY_ANSWER / 2,
                                                              .n_device_layers = model->layers,
                                                              .n_expert_layers = tensor ? 0 : n_expert_layers,
                                                              .ranks = tensor ? ranks : 1});
        sum[tensor] = *read + POLICY_ANSWER * out->step[tensor];
    }
    out->tensor = sum[1] < sum[0] * MIN_GAIN;
}

/* Why a batch cannot decode in a mode that uses devices; NULL: it can. */
static const char *decode_refusal(const struct policy_machine *m, int mode, int n_device_layers) {
    if (m->is_lost) return "a device was lost";
    if (!usable_devices(m)) return "no device";
    if (m->is_yielded) return "the devices are in use by a prefill";
    if (!(m->decode_mask >> mode & 1)) return "not with the current device contents";
    return n_device_layers ? NULL : "no layer's attention block fits on the device";
}
void policy_decode_batch(const struct policy_machine *m, const struct policy_decode_in *in,
                         struct policy_decode_out *out) {
    *out = (struct policy_decode_out){.mode = DECODE_CPU};
    int n = in->n_decoding < in->max_rows ? in->n_decoding : in->max_rows, b = n < POLICY_BATCH ? n : POLICY_BATCH;
    out->batch = b;
    if (!is_calibrated(m)) {
        out->batch = n;
        return;
    }
    out->n_device_layers = m->n_device_layers;
    for (int i = 0; i < usable_devices(m) && !m->n_device_layers; i++)
        out->n_device_layers += cost_layers_fit(m->model, m->free[i], in->context_tokens * b);
    if (out->n_device_layers > m->model->layers) out->n_device_layers = m->model->layers;
    const char **refused = out->refused;
    refused[DECODE_PAGED] = "paged mode is for throughput batches"; /* search.h */
    for (int i = DECODE_HYBRID; i < DECODE_PAGED; i++) refused[i] = decode_refusal(m, i, out->n_device_layers);
    if (refused[DECODE_HYBRID]) refused[DECODE_DUAL] = refused[DECODE_HYBRID];
    double now = best_decode(m, in, b, MIN_GAIN, out);
    while (b < n) {
        struct policy_decode_out more = *out;
        double then = best_decode(m, in, b + 1, MIN_GAIN, &more);
        if ((b + 1) / then - b / now < MIN_SESSION_GAIN / now) break;
        *out = more, now = then, out->batch = ++b;
    }
    out->tpot_s = now * in->n_decoding / b;
    const bool misses = m->max_tpot_s > 0 && out->tpot_s > m->max_tpot_s;
    for (int rows = 1; misses && rows <= n; rows++) {
        struct policy_decode_out other = *out;
        other.batch = rows, other.tpot_s = best_decode(m, in, rows, 1, &other) * in->n_decoding / rows;
        if (other.tpot_s < out->tpot_s) *out = other;
    }
}

int policy_time_slice(const struct policy_machine *m, const struct policy_decode_in *in, int n_fit) {
    /* a slice is at least UPLOAD_SHARE times as long as the uploads before it */
    enum { SHORTEST = 4, LONGEST = 64, UPLOAD_SHARE = 8 };
    const int n = in->n_decoding, n_moved = n - n_fit < n_fit ? n - n_fit : n_fit;
    if (!is_calibrated(m) || n_fit < 1 || n_fit >= n) return 0;
    const struct cost_model *q = m->model;
    const double layers = q->layers, rate = cost_upload_rate(m->cost, usable_devices(m));
    const double upload_s = rate > 0 ? n_moved * in->keys * layers * (q->kv_row_bytes + q->index_bytes) / rate : 0;
    double t[2];
    for (int all = 0; all < 2; all++) {
        const struct cost_decode s = {.mode = DECODE_HYBRID,
                                      .rows = all ? n : n_fit,
                                      .keys = in->keys,
                                      .n_device_layers = m->n_device_layers,
                                      .n_expert_layers = m->n_expert_layers,
                                      .resident_share = m->resident_share,
                                      .sends_experts = m->sends_experts,
                                      .moves_experts = m->moves_experts,
                                      .ranks = m->ranks};
        t[all] = cost_decode(m->cost, q, &s);
    }
    t[1] += layers * cost_attention_block(m->cost, 0, q, cost_decode_rows(n - n_fit, in->keys));
    double batches = ceil(UPLOAD_SHARE * upload_s / t[0]);
    batches = batches < SHORTEST ? SHORTEST : batches > LONGEST ? LONGEST : batches;
    const double in_slices = n_fit * batches / (batches * t[0] + upload_s), together = n / t[1];
    return in_slices > together * MIN_SLICE_GAIN ? (int)batches : 0;
}

int policy_max_sessions(const struct policy_machine *m, const struct policy_decode_in *in, double *tpot_s) {
    struct policy_decode_in more = *in;
    struct policy_decode_out out;
    for (more.n_decoding = 1;; more.n_decoding++) {
        policy_decode_batch(m, &more, &out);
        if (more.n_decoding > 1 && out.tpot_s > m->max_tpot_s) return more.n_decoding - 1;
        *tpot_s = out.tpot_s;
        if (more.n_decoding >= in->max_rows || out.tpot_s > m->max_tpot_s) return more.n_decoding;
    }
}

/* Percent that a batch would gain at most if the link took missing experts of pinned layers from the CPU. */
static double gain_of_dividing(const struct policy_machine *m, const struct policy_decode_in *in,
                               const struct policy_decode_out *out) {
    struct cost_decode s = {.mode = DECODE_HYBRID,
                            .rows = out->batch,
                            .keys = in->keys,
                            .n_device_layers = out->n_device_layers,
                            .n_expert_layers = m->n_expert_layers,
                            .resident_share = m->resident_share,
                            .ranks = m->ranks};
    const double now_s = cost_decode(m->cost, m->model, &s);
    s.divides_missing = true;
    return 100 * (now_s / cost_decode(m->cost, m->model, &s) - 1);
}

void policy_decode_why(const struct policy_machine *m, const struct policy_decode_in *in,
                       const struct policy_decode_out *out, char *why, size_t cap) {
    const char *const *refused = out->refused;
    enum exec_mode asked = m->forced_decode;
    *why = 0;
    if (!is_calibrated(m)) return append_why(why, cap, m->n_devices ? "the machine is not calibrated" : "no device");
    if (asked) {
        if (asked == out->mode) append_why(why, cap, "requested");
        else
            append_why(why, cap, "%s was requested, but: %s", exec_mode_name(asked),
                       refused[asked] ? refused[asked] : "one session");
        append_why(why, cap, "; ");
    } else if (refused[DECODE_HYBRID]) append_why(why, cap, "%s; ", refused[DECODE_HYBRID]);
    append_times(why, cap, out->seconds, out->mode);
    if (out->mode != DECODE_CPU && out->n_device_layers < m->model->layers)
        append_why(why, cap, "; %d of %d layers fit on the devices", out->n_device_layers, m->model->layers);
    if (out->mode == DECODE_HYBRID && m->resident_share > 0 && m->resident_share < 1 && !m->sends_experts &&
        !m->moves_experts)
        append_why(why, cap,
                   "; the CPU computes the experts that are not pinned: sending some would gain %.0f%% at most",
                   gain_of_dividing(m, in, out));
    if (in->n_decoding > out->batch) append_why(why, cap, "; %d of %d sessions at once", out->batch, in->n_decoding);
    if (m->max_tpot_s > 0 && out->tpot_s > 0)
        append_why(why, cap, "; %.3g ms per token, %s the limit of %.4g (--max-tpot)", out->tpot_s * 1e3,
                   out->tpot_s > m->max_tpot_s ? "the least, above" : "within", m->max_tpot_s * 1e3);
}
