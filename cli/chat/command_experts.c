/* /experts: which routed experts the answers used, and where they are resident. One line per layer, with a denser
 * character for experts that were chosen more often. */
#include <stdlib.h>

#include "cli/chat/command.h"
#include "cli/chat/screen.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/term.h"

/* Maps a share of the uniform frequency to a character: none, under 1/4, 1/2, 1, 2, 4, more. */
static char density_char(double share) {
    static const double upto[] = {0.25, 0.5, 1, 2, 4};
    size_t i = 0;
    if (share <= 0) return ' ';
    while (i < sizeof upto / sizeof *upto && share >= upto[i]) i++;
    return ".:-+*#"[i];
}

static uint64_t layer_uses(const struct expert_map *m, int layer) {
    uint64_t sum = 0;
    for (int i = 0; i < m->n_experts; i++) sum += m->n_used[layer * m->n_experts + i];
    return sum;
}

static void put_layer_row(const struct expert_map *m, int layer, int group, struct buf *out) {
    const uint32_t *used = m->n_used + layer * m->n_experts;
    const int8_t *device = m->device_rank + layer * m->n_experts;
    uint64_t all = layer_uses(m, layer), device_uses = 0;
    int n_on_device = 0;
    buf_fmt(out, "  %3d |", layer);
    for (int at = 0; at < m->n_experts; at += group) {
        int end = at + group < m->n_experts ? at + group : m->n_experts;
        uint64_t sum = 0;
        for (int i = at; i < end; i++) sum += used[i];
        buf_char(out, density_char((double)sum * m->n_experts / ((double)all * (end - at))));
    }
    buf_char(out, '|');
    for (int i = 0; i < m->n_experts; i++)
        if (device[i] >= 0) n_on_device++, device_uses += used[i];
    if (n_on_device) buf_fmt(out, " %d on a device, %.0f%%", n_on_device, 100.0 * (double)device_uses / (double)all);
    buf_char(out, '\n');
}

/* Lists the most used experts of one layer. */
static void put_layer_experts(const struct expert_map *m, int layer, struct buf *out) {
    enum { MAX_SHOWN = 16 };
    const uint32_t *used = m->n_used + layer * m->n_experts;
    uint64_t all = layer_uses(m, layer);
    uint32_t last = UINT32_MAX;
    int n_shown = 0, last_id = -1;
    buf_fmt(out, "layer %d, %llu choices, the most used first:\n", layer, (unsigned long long)all);
    while (n_shown < MAX_SHOWN && n_shown < m->n_experts) {
        int best = -1;
        for (int i = 0; i < m->n_experts; i++)
            if ((used[i] < last || (used[i] == last && i > last_id)) && (best < 0 || used[i] > used[best])) best = i;
        if (best < 0 || !used[best]) break;
        int device = m->device_rank[layer * m->n_experts + best];
        buf_fmt(out, "  expert %3d  %5.1f%%", best, 100.0 * used[best] / (double)all);
        if (device >= 0) buf_fmt(out, "  on device %d", device);
        buf_char(out, '\n');
        last = used[best], last_id = best, n_shown++;
    }
}

/* Prints a line per device: the experts it keeps, by class, and how many of the experts that its rows selected it
 * computed. */
static void put_devices(const struct expert_map *m, struct buf *out) {
    char bytes[32], count[32];
    for (int i = 0; i < m->n_devices; i++) {
        const struct expert_device *d = &m->device[i];
        buf_fmt(out, "device %d:", d->rank);
        if (d->resident_layers)
            buf_fmt(out, " resident: %d of %d layers, %s;", d->resident_layers, d->layers,
                    amount_bytes(d->resident_bytes, bytes, sizeof bytes));
        if (d->cached)
            buf_fmt(out, " cached: %s, %s;", amount_count(d->cached, "expert", count, sizeof count),
                    amount_bytes(d->cached_bytes, bytes, sizeof bytes));
        if (d->pinned)
            buf_fmt(out, " pinned: %s, %s;", amount_count(d->pinned, "expert", count, sizeof count),
                    amount_bytes(d->pinned_bytes, bytes, sizeof bytes));
        if (!d->resident_layers && !d->cached && !d->pinned) buf_str(out, " no experts;");
        if (d->chosen)
            buf_fmt(out, " %.0f%% of %llu choices", 100.0 * (double)d->hits / (double)d->chosen,
                    (unsigned long long)d->chosen);
        else buf_str(out, " no choice yet");
        buf_char(out, '\n');
    }
}

static void put_all_layers(const struct expert_map *m, struct buf *out) {
    int rows, cols, layers = 0, group = 1;
    term_size(&rows, &cols);
    /* leaves room for the layer number and the device column */
    while ((m->n_experts + group - 1) / group > (cols > 60 ? cols - 32 : 28)) group++;
    for (int l = 0; l < m->n_layers; l++) layers += layer_uses(m, l) > 0;
    buf_fmt(out, "experts chosen by answers, %d per layer%s: blank none, . : - below average, + * # above\n",
            m->n_experts, group > 1 ? ", several per column" : "");
    for (int l = 0; l < m->n_layers; l++)
        if (layer_uses(m, l)) put_layer_row(m, l, group, out);
    put_devices(m, out);
    if (*m->tuned) buf_fmt(out, "%s\n", m->tuned);
    if (layers) buf_str(out, "/experts N shows layer N; /stats shows the uploads");
}

void command_experts(struct repl *r, const char *arg) {
    struct expert_map m;
    struct error e = {0};
    struct buf b = {0};
    char *end;
    long layer = strtol(arg, &end, 10);
    if (!r->app->backend->is_local) {
        screen_print(r, "experts are shown only for an engine in this process; start hearth with --no-attach");
        return;
    }
    if (!r->app->info->n_experts) {
        screen_print(r, "this model has no experts");
        return;
    }
    if (engine_expert_map(r->app->engine, &m, &e)) {
        screen_print(r, "%s", e.text);
        return;
    }
    uint64_t all = 0;
    for (int l = 0; l < m.n_layers; l++) all += layer_uses(&m, l);
    if (*arg && (end == arg || *end || layer < 0 || layer >= m.n_layers || (all && !layer_uses(&m, (int)layer))))
        screen_print(r, "layer %.40s has no experts; there are %d layers, counted from 0", arg, m.n_layers);
    else if (!all) screen_print(r, "no answer yet");
    else {
        if (*arg) put_layer_experts(&m, (int)layer, &b);
        else put_all_layers(&m, &b);
        if (b.len && b.data[b.len - 1] == '\n') b.data[--b.len] = 0;
        if (b.data) screen_print_styled(r, "\033[2m", "", b.data, b.len);
    }
    buf_free(&b);
    engine_expert_map_free(&m);
}
