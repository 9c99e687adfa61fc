#include "engine/placement/calibrate_numa.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "cpu/kernels.h"
#include "cpu/numa.h"
#include "cpu/pool.h"

enum { NODE_PASSES = 4, IDLE = -1 };

struct reading {
    const struct calibrate_options *o;
    struct kernels k;
    uint8_t *data[COST_NODES]; /* [bytes] */
    size_t bytes;
    int threads[COST_NODES], first[COST_NODES]; /* threads of each node, and its first thread */
    int from[COST_NODES];                       /* node that this node's threads read from, or IDLE */
    int streams, ahead;
    double *took;          /* [threads] seconds */
    _Atomic uint32_t keep; /* keeps the compiler from dropping the reads */
};
static void read_node_part(void *arg, int thread, int n) {
    struct reading *r = arg;
    int node = pool_node(r->o->pool, thread), from = r->from[node];
    size_t part = r->bytes / (size_t)r->threads[node] / MEM_PAGE * MEM_PAGE;
    double begin = clock_now();
    r->took[thread] = 0;
    if (from == IDLE) return;
    atomic_fetch_xor(&r->keep, f32_bits(r->k.read(r->data[from] + (size_t)(thread - r->first[node]) * part, part,
                                                  r->streams, r->ahead)));
    uint32_t held = r->o->nodes->read_mbps[node][from]; /* MB/s */
    double least = held ? (double)part * r->threads[node] / (held * 1e6) : 0, left = least - (clock_now() - begin);
    if (left > 0) nanosleep(&(struct timespec){(time_t)left, (long)(fmod(left, 1) * 1e9)}, NULL);
    r->took[thread] = clock_now() - begin;
}
/* Bytes/s of each node's threads for the current `from`; maximum of several passes. */
static void node_rates(struct reading *r, int n_nodes, double *rate) {
    /* streams, prefetch distance: as in --bench */
    static const int patterns[NODE_PASSES][2] = {{4, 1024}, {1, 2048}, {4, 0}, {8, 0}};
    memset(rate, 0, (size_t)n_nodes * sizeof *rate);
    for (int i = 0; i < NODE_PASSES; i++) {
        r->streams = patterns[i][0], r->ahead = patterns[i][1];
        pool_run(r->o->pool, read_node_part, r);
        for (int a = 0; a < n_nodes; a++) {
            double longest = 0;
            for (int t = r->first[a]; t < r->first[a] + r->threads[a]; t++) longest = fmax(longest, r->took[t]);
            if (longest > 0)
                rate[a] = fmax(rate[a], (double)(r->bytes / (size_t)r->threads[a] / MEM_PAGE * MEM_PAGE) *
                                            r->threads[a] / longest);
        }
    }
}

static bool is_cancelled(const struct calibrate_options *o) { return o->cancel && atomic_load(o->cancel); }
static void set_all_idle(struct reading *r) {
    for (int a = 0; a < COST_NODES; a++) r->from[a] = IDLE;
}
static void measure_nodes(struct cost_machine *m, struct reading *r, int n) {
    double alone[COST_NODES] = {0}, rate[COST_NODES], sum = 0, threads = 0;
    int last = IDLE;
    for (int a = 0; a < n && !is_cancelled(r->o); a++) {
        if (!r->threads[a]) continue;
        set_all_idle(r);
        r->from[a] = a;
        node_rates(r, n, rate);
        sum += alone[a] = rate[a], threads += r->threads[a], last = a;
    }
    set_all_idle(r);
    for (int a = 0; a < n; a++) /* each node reads from the previous one */
        if (r->threads[a]) r->from[a] = last, last = a;
    node_rates(r, n, rate);
    m->n_nodes = n;
    m->inter_node_bw = INFINITY;
    for (int a = 0; a < n; a++) {
        m->node[a] = (struct cost_node){(double)r->o->nodes->memory[a], alone[a] / sum, r->threads[a] / threads};
        if (r->threads[a]) m->inter_node_bw = fmin(m->inter_node_bw, rate[a]);
    }
}

int calibrate_numa(struct cost_machine *m, const struct calibrate_options *o, size_t bytes, struct error *e) {
    int n = o->nodes && o->pool ? o->nodes->n_nodes : 1, rc = 0;
    if (n < 2 || n > COST_NODES || pool_nodes(o->pool) != n) return 0;
    struct reading r = {.o = o, .bytes = bytes};
    kernels_fill(&r.k, cpu_level_best());
    r.took = mem_calloc((size_t)pool_threads(o->pool), sizeof *r.took);
    if (!r.took) rc = ERR_MEMORY;
    for (int t = pool_threads(o->pool); t-- > 0;)
        r.threads[pool_node(o->pool, t)]++, r.first[pool_node(o->pool, t)] = t;
    for (int a = 0; a < n && !rc; a++) {
        if (!(r.data[a] = mem_pages(bytes, MEM_HUGE))) rc = ERR_MEMORY;
        else if (!(rc = numa_bind_memory(o->nodes, r.data[a], bytes, a, e))) memset(r.data[a], 1, bytes);
    }
    if (rc == ERR_RUNTIME)
        log_say(LOG_INFO, "%s; NUMA nodes are not calibrated individually", e->text), *e = (struct error){0};
    else if (!rc) measure_nodes(m, &r, n);
    rc = rc == ERR_RUNTIME ? 0 : rc;
    if (!rc && is_cancelled(o)) rc = error_set(e, ERR_CANCELLED, "stopped");
    if (rc == ERR_MEMORY)
        error_set(e, rc, "not enough memory to calibrate %d NUMA nodes (%zu MB each)", n, bytes >> 20);
    for (int a = 0; a < n; a++) mem_pages_free(r.data[a], bytes);
    mem_free(r.took);
    return rc;
}
