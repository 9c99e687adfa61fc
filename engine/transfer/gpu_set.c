#include "engine/transfer/gpu_set.h"

#include "base/log.h"
#include "base/mem.h"

bool gpu_set_pinned(const struct gpu_set *s, const void *p, size_t size) {
    return s->pin && pin_covers(s->pin, p, size);
}

int gpu_set_open(struct gpu_set **out, const char *list, struct error *e) {
    struct gpu_spec spec;
    *out = NULL;
    int rc = gpu_spec_parse(&spec, list, e);
    return rc || !spec.n ? rc : gpu_set_open_spec(out, &spec, e);
}

int gpu_set_open_spec(struct gpu_set **out, const struct gpu_spec *spec, struct error *e) {
    struct gpu_set *s = mem_calloc(1, sizeof *s);
    int rc = 0;
    *out = NULL;
    if (!s) return error_set(e, ERR_MEMORY, "no memory for devices");
    s->spec = *spec;
    for (; s->n < spec->n && !rc; s->n++) {
        if ((rc = gpu_open(&s->gpu[s->n], spec, s->n, e))) break;
        ledger_open(&s->ledger[s->n], s->gpu[s->n]);
    }
    if (rc) gpu_set_close(&s);
    *out = s;
    return rc;
}

int gpu_set_pin(struct gpu_set *s, const struct weights *w, const struct numa *nodes, struct error *e) {
    int rc = pin_open(&s->pin, s->gpu[0], w, nodes, false, e);
    for (int i = 0; i < s->n && !rc; i++) gpu_reserve(s->gpu[i], pin_page_table_bytes(s->pin));
    return rc;
}

static void say_elsewhere(struct gpu *g, const struct gpu_elsewhere *m) {
    const struct gpu_info *i = gpu_info(g);
    log_say(LOG_WARN,
            "device %d (%s): the driver keeps %.1f of %.1f GB of its memory in system memory: reads take %.0f GB/s "
            "instead of up to %.0f. The card is full, perhaps since other programs use it; give hearth less of it, as "
            "with --gpus %d,mem=%.0fG",
            i->rank, i->name, 1e-9 * (double)m->bytes, 1e-9 * (double)m->used, 1e-9 * m->read, 1e-9 * m->sheet, i->id,
            0.9e-9 * (double)(m->used - m->bytes));
}
void gpu_set_check_memory(struct gpu_set *s) {
    for (int i = 0; i < s->n && !s->is_lost; i++) {
        const size_t bytes = ledger_bytes(&s->ledger[i], LEDGER_LOCKABLE);
        struct gpu_elsewhere m;
        if (bytes <= s->checked_bytes[i]) continue;
        s->checked_bytes[i] = bytes;
        if (gpu_memory_elsewhere(s->gpu[i], &m)) say_elsewhere(s->gpu[i], &m);
    }
}

void gpu_set_choose_math(struct gpu_set *s, const struct config *c) {
    s->reads_in_fp8 = config_reads_in_fp8(c) && !s->spec.has_math;
    for (int i = 0; i < s->n; i++) s->reads_in_fp8 &= gpu_info(s->gpu[i])->has_fp8;
}

void gpu_set_close(struct gpu_set **sp) {
    struct gpu_set *s = *sp;
    if (!s) return;
    *sp = NULL;
    pin_close(&s->pin);
    for (int i = 0; i < s->n; i++) ledger_close(&s->ledger[i]), gpu_close(&s->gpu[i]);
    mem_free(s);
}
