#include "engine/session/speeds.h"

#include "base/log.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/numa_cost.h"

/* Enters the NUMA nodes into the cost model: as measured, or else with equal speeds, scaled by CPU count. home: each node computes the weights in its memory.
 */
static void set_numa_nodes(struct engine *e, bool home) {
    const struct numa *n = &e->numa;
    struct cost_machine *m = &e->cost;
    double cpus = 0;
    int measured = m->n_nodes;
    m->n_nodes = 0, m->spread_bw_share = 0;
    for (int a = 0; a < n->n_nodes; a++) cpus += n->cpus[a];
    if (n->n_nodes < 2 || n->n_nodes > COST_NODES || cpus < 1) return;
    if (measured != n->n_nodes) {
        numa_cost_even(m, n->n_nodes, 0);
        for (int a = 0; a < n->n_nodes; a++) m->node[a] = (struct cost_node){(double)n->memory[a], n->cpus[a] / cpus, n->cpus[a] / cpus};
    }
    m->n_nodes = n->n_nodes;
    if (home) return;
    m->spread_bw_share = numa_cost_reach(m, &e->cost_model);
    log_say(LOG_INFO, "%d NUMA nodes, weights are not placed by node: expecting %.0f%% of the bandwidth", m->n_nodes, 100 * m->spread_bw_share);
}

static void limit_uploads(struct engine *e) {
    const struct pin *p = e->machine.gpus ? e->machine.gpus->pin : NULL;
    for (int i = 1; p && i <= e->cost.n_devices; i++) {
        double *rate = &e->cost.domain[i].link[COST_H2D].rate;
        *rate = pin_rate(pin_get_choice(p)->path, *rate);
    }
    set_numa_nodes(e, numa_copy_is_copying(e->machine.numa_copy) || (p && pin_get_choice(p)->by_node));
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

/* Fills the cost model with assumed speeds; speeds_calibrate() replaces them and observations correct them. */
void speeds_assume(struct engine *e, enum cpu_level level) {
    const struct gpu_set *g = e->machine.gpus;
    const struct gpu_info *info = g ? gpu_info(g->gpu[0]) : NULL;
    cost_model_of(&e->cost_model, &e->weights.config, weights_dense_dtype(&e->weights), weights_ffn_dtype(&e->weights), (enum dtype)e->params.kv);
    cost_assumed(&e->cost, pool_threads(e->pool), (int)level, g ? g->n : 0, info ? info->h2d : 0, info ? info->d2h : 0, 0);
    if (g && g->spec.is_emulated) apply_emulated_speeds(&e->cost, &g->spec);
    e->cost.is_deterministic = e->params.deterministic;
    limit_uploads(e);
    e->is_calibrated = !g || g->spec.is_emulated || !e->params.calibration_dir; /* no choice to make; speeds are given; no place to save results */
}

/* Calibrates the machine before the first decision that involves a GPU. Takes seconds unless the results are saved. */
void speeds_calibrate(struct engine *e) {
    struct gpu_set *g = e->machine.gpus;
    struct error err = {0};
    struct cost_machine measured;
    e->is_calibrated = true;
    e->machine.cpu->cancel = &e->closing;
    if (calibrate(&measured,
                  &(struct calibrate_options){.cpu = e->machine.cpu,
                                              .threads = e->info.threads,
                                              .pool = e->pool,
                                              .nodes = &e->numa,
                                              .gpu = g->gpu,
                                              .n_gpus = g->n,
                                              .gpus = e->params.gpus,
                                              .dir = e->params.calibration_dir,
                                              .cancel = &e->closing},
                  &err)) {
        log_say(LOG_WARN, "calibration failed: %s; assuming typical speeds", err.text);
        return;
    }
    measured.is_deterministic = e->params.deterministic;
    e->cost = measured;
    limit_uploads(e);
}
