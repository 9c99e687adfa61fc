/* The page of --page and what it asks for beyond the protocols: where the experts are. */
#include <string.h>

#include "cli/server/server.h"

extern const char serve_page_begin[], serve_page_end[]; /* page.html, by embed_page.sh */

void serve_page_get(const char **text, size_t *n) {
    *text = serve_page_begin;
    *n = (size_t)(serve_page_end - serve_page_begin);
}

static void put_layer(const struct expert_map *m, int layer, struct buf *b) {
    const size_t from = (size_t)layer * (size_t)m->n_experts;
    buf_str(b, layer ? ",\n{\"used\": [" : "{\"used\": [");
    for (int i = 0; i < m->n_experts; i++) buf_fmt(b, "%s%u", i ? "," : "", m->n_used[from + (size_t)i]);
    buf_str(b, "], \"device\": [");
    for (int i = 0; i < m->n_experts; i++) buf_fmt(b, "%s%d", i ? "," : "", m->device_rank[from + (size_t)i]);
    buf_str(b, "]}");
}

int serve_page_put_experts(const struct server *s, struct buf *b, struct error *e) {
    const struct serve_model *model = serve_model_current(s);
    struct expert_map m;
    if (!model->is_open || !model->app->info->n_experts)
        return error_set(e, ERR_USAGE, "no model with experts is open");
    for (int i = 0; i < s->n_sessions; i++) /* the engine would answer between two steps only, and we would wait */
        if (s->sessions[i].choice && s->sessions[i].client->app == model->app)
            return error_set(e, ERR_MEMORY, "an answer is being generated; ask again when it has ended");
    TRY(engine_expert_map(model->app->engine, &m, e));
    buf_fmt(b, "{\"n_experts\": %d, \"layers\": [", m.n_experts);
    for (int i = 0; i < m.n_layers; i++) put_layer(&m, i, b);
    buf_str(b, "], \"devices\": [");
    for (int i = 0; i < m.n_devices; i++)
        buf_fmt(b, "%s{\"rank\": %d, \"resident_layers\": %d, \"layers\": %d, \"cached\": %d}", i ? ", " : "",
                m.device[i].rank, m.device[i].resident_layers, m.device[i].layers, m.device[i].cached);
    buf_str(b, "]}\n");
    engine_expert_map_free(&m);
    return 0;
}
