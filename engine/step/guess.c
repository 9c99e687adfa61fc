#include "engine/step/guess.h"

#include <string.h>

static bool guessed(const struct step_guess *g, int layer) {
    const struct step *s = g->d->s;
    return layer < g->d->last && s->c->layer[layer].moe && !s->m->w->layers[layer].router_table;
}
static size_t pairs_of(const struct step_guess *g) { return (size_t)STEP_ROWS * (size_t)g->d->s->c->topk; }
static int32_t *said(const struct step_guess *g, int micro, int layer, int distance) {
    return g->said + ((size_t)(micro * GUESS_LAYERS + layer % GUESS_LAYERS) * PREDICT_FAR + (size_t)(distance - 1)) * pairs_of(g);
}
static void forget(struct step_guess *g) {
    memset(g->made, 0, sizeof g->made);
    memset(g->busy, 0, sizeof g->busy);
    for (int i = 0; i < 2 * STEP_MICROS; i++) g->at[i / 2][i % 2] = -1;
    g->n_done = 0;
}

int guess_open_queue(struct step_guess *g, const _Atomic int *stop, struct error *e) {
    if (!g->d) return 0;
    forget(g);
    int rc = gpu_stream_open(g->d->g, &g->stream, "guesses", false, stop, e);
    return rc ? rc : gpu_number_open(g->d->g, &g->done, e);
}
void guess_break(struct step_guess *g) {
    if (g->done) gpu_number_break(g->done);
}
void guess_close_queue(struct step_guess *g) {
    if (g->stream) gpu_stream_sync(g->stream);
    gpu_stream_close(&g->stream);
    gpu_number_close(&g->done);
}

int guess_open(struct step_guess *g, struct step_device *d, const _Atomic int *stop, struct error *e) {
    const struct config *c = d->s->c;
    const size_t rows = STEP_ROWS, row = rows * (size_t)c->hidden * 4, pairs = rows * (size_t)c->topk * 4;
    const size_t bytes[] = {row, row, row, row, row, rows * (size_t)c->n_experts * 4, pairs, pairs, rows * 4, 4};
    int rc = 0;
    *g = (struct step_guess){0};
    if (c->streams.n) return 0;
    g->d = d;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes && !rc; i++) rc = gpu_alloc(d->g, &g->mem[i], bytes[i], e);
    if (!rc) rc = gpu_host_alloc(d->g, (void **)&g->said, STEP_MICROS * GUESS_LAYERS * PREDICT_FAR * pairs, e);
    if (rc) return rc;
    for (int i = 0; i < 2 * STEP_MICROS; i++) g->from[i / 2][i % 2] = g->mem[i];
    g->work = (struct work){.rows = STEP_ROWS,
                            .xn = g->mem[4],
                            .router = g->mem[5],
                            .ids = g->mem[6],
                            .weights = g->mem[7],
                            .shared_weight = g->mem[8],
                            .bad = g->mem[9]}; /* bad is ignored */
    return guess_open_queue(g, stop, e);
}
void guess_close(struct step_guess *g) {
    if (!g->d) return;
    guess_close_queue(g);
    for (size_t i = 0; i < sizeof g->mem / sizeof *g->mem; i++) gpu_free(g->d->g, g->mem[i]);
    gpu_host_free(g->d->g, g->said);
    *g = (struct step_guess){0};
}

void guess_begin(struct step_guess *g, bool pays) { g->on = g->d && pays && !g->d->s->m->cost->deterministic && predict_asks(&g->d->predict); }

int guess_keep(struct step_guess *g, int micro, int layer, const float *x, int n) {
    int side = layer % 2;
    bool use = false;
    for (int k = 1; k <= PREDICT_FAR && g->on; k++) use |= guessed(g, layer + k);
    if (!use || !gpu_number_reached(g->done, g->busy[micro][side])) return 0;
    g->at[micro][side] = layer;
    return gpu_copy(g->d->main, g->from[micro][side], x, (size_t)n * (size_t)g->d->s->c->hidden * 4, GPU_D2D);
}

int guess_ask(struct step_guess *g, int micro, int layer, struct gpu_event *ready, int n) {
    const struct config *c = g->d ? g->d->s->c : NULL;
    int side = layer % 2;
    if (!g->on || layer >= g->d->last || g->at[micro][side] != layer) return 0;
    g->at[micro][side] = -1;
    g->work.x = g->from[micro][side];
    g->busy[micro][side] = ++g->n_done;
    TRY(gpu_event_wait(ready, g->stream));
    for (int k = 1; k <= PREDICT_FAR; k++) {
        if (!guessed(g, layer + k)) continue;
        TRY(block_route(gpu_stream_exec(g->stream), c, &g->d->layer[layer + k].view, layer + k, &g->work, n));
        TRY(gpu_copy(g->stream, said(g, micro, layer + k, k), g->work.ids, (size_t)n * (size_t)c->topk * 4, GPU_D2H));
        g->made[micro][(layer + k) % GUESS_LAYERS][k - 1] = (struct step_said){g->n_done, layer + k, n};
    }
    return gpu_number_write(g->done, g->n_done, g->stream);
}

const int32_t *guess_of(const struct step_guess *g, int micro, int layer, int distance, int n) {
    const struct step_said *m = &g->made[micro][layer % GUESS_LAYERS][distance - 1];
    return g->d && m->layer == layer && m->n == n && gpu_number_reached(g->done, m->done) ? said(g, micro, layer, distance) : NULL;
}

void guess_chosen(struct step_guess *g, int micro, int layer, const int32_t *ids, int n) {
    for (int k = 1; k <= PREDICT_FAR && g->d; k++) {
        const int32_t *guess = guess_of(g, micro, layer, k, n);
        struct predict_said a = guess ? predict_judge(&g->d->predict, k, guess, ids, n * g->d->s->c->topk) : (struct predict_said){0};
        g->d->s->counts.said[k - 1] += (uint64_t)a.all, g->d->s->counts.right[k - 1] += (uint64_t)a.right;
        g->made[micro][layer % GUESS_LAYERS][k - 1].n = 0;
    }
}
