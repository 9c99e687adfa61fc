#include "engine/session/speeds.h"

#include "base/log.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/numa_cost.h"

/* Enters the NUMA nodes into the cost model: as measured, or with equal speeds scaled by CPU count. home: each node
 * computes the weights in its memory. */
static void set_numa_nodes(struct engine *eng, bool home) {
    const struct numa *n = &eng->numa;
    struct cost_machine *m = &eng->cost;
    double cpus = 0;
    int measured = m->n_nodes;
    m->n_nodes = 0, m->spread_bw_share = 0;
    for (int a = 0; a < n->n_nodes; a++) cpus += n->cpus[a];
    if (n->n_nodes < 2 || n->n_nodes > COST_NODES || cpus < 1) return;
    if (measured != n->n_nodes) {
        numa_cost_even(m, n->n_nodes, 0);
        for (int a = 0; a < n->n_nodes; a++)
            m->node[a] = (struct cost_node){(double)n->memory[a], n->cpus[a] / cpus, n->cpus[a] / cpus};
    }
    m->n_nodes = n->n_nodes;
    if (home) return;
    m->spread_bw_share = numa_cost_reach(m, &eng->cost_model);
    log_say(LOG_INFO, "%d NUMA nodes, weights are not placed by node: expecting %.0f%% of the bandwidth", m->n_nodes,
            100 * m->spread_bw_share);
}

static void limit_uploads(struct engine *eng) {
    const struct pin *p = eng->machine.gpus ? eng->machine.gpus->pin : NULL;
    for (int i = 1; p && i <= eng->cost.n_devices; i++) {
        double *rate = &eng->cost.domain[i].link[COST_H2D].rate;
        *rate = pin_rate(pin_get_choice(p)->path, *rate);
    }
    set_numa_nodes(eng, numa_copy_is_copying(eng->machine.numa_copy) || (p && pin_get_choice(p)->by_node));
}

/* Sets the speeds that --gpus gave for emulated devices. */
static void apply_emulated_speeds(struct cost_machine *m, const struct gpu_spec *s) {
    for (int d = 1; d <= m->n_devices; d++)
        for (int k = 0; k < COST_KINDS; k++) {
            struct cost_domain *g = &m->domain[d];
            double rate = k == COST_ATTENTION ? s->attn : s->flops;
            for (int i = 0; i < g->bw[k].n && s->bw > 0; i++) g->bw[k].value[i] = (float)s->bw;
            for (int f = 0; f < COST_FORMATS; f++)
                for (int i = 0; i < g->rate[k][f].n && rate > 0; i++) g->rate[k][f].value[i] = (float)rate;
            if (s->launch > 0) g->latency[k] = s->launch;
        }
}

void speeds_assumed(struct cost_machine *m, const struct gpu_set *g, int threads, enum cpu_level level) {
    const struct gpu_info *info = g ? gpu_info(g->gpu[0]) : NULL;
    cost_assumed(m, threads, (int)level, g ? g->n : 0, info ? info->h2d : 0, info ? info->d2h : 0, 0);
    if (g && g->spec.is_emulated) apply_emulated_speeds(m, &g->spec);
}
/* Whether measurements in use change no decision. With pinned experts a text can be repeated, too. */
static bool decides_by_table(const struct engine *eng) {
    return eng->params.deterministic || (eng->machine.decode && decode_pinned_share(eng->machine.decode) > 0);
}
void speeds_assume(struct engine *eng, enum cpu_level level) {
    const struct gpu_set *g = eng->machine.gpus;
    cost_model_of(&eng->cost_model, &eng->weights.config, weights_dense_dtype(&eng->weights),
                  weights_ffn_dtype(&eng->weights), (enum dtype)eng->params.kv);
    speeds_assumed(&eng->cost, g, pool_threads(eng->pool), level);
    if (g && g->reads_in_fp8) cost_use_fp8(&eng->cost);
    eng->cost.is_deterministic = decides_by_table(eng);
    limit_uploads(eng);
    /* no choice to make; speeds are given; no place to save results */
    eng->is_calibrated = !g || g->spec.is_emulated || !eng->params.calibration_dir;
}

/* Calibrates the machine before the first decision that involves a GPU. Takes seconds unless the results are saved. */
void speeds_calibrate(struct engine *eng) {
    struct gpu_set *g = eng->machine.gpus;
    struct error e = {0};
    struct cost_machine measured;
    eng->is_calibrated = true;
    eng->machine.cpu->cancel = &eng->closing;
    if (calibrate(&measured,
                  &(struct calibrate_options){.cpu = eng->machine.cpu,
                                              .threads = eng->info.threads,
                                              .pool = eng->pool,
                                              .nodes = &eng->numa,
                                              .gpu = g->gpu,
                                              .n_gpus = g->n,
                                              .gpus = eng->params.gpus,
                                              .dir = eng->params.calibration_dir,
                                              .cancel = &eng->closing},
                  &e)) {
        log_say(LOG_WARN, "calibration failed: %s; assuming typical speeds", e.text);
        return;
    }
    measured.is_deterministic = decides_by_table(eng);
    if (g->reads_in_fp8) cost_use_fp8(&measured);
    eng->cost = measured;
    limit_uploads(eng);
}
