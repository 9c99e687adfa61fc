#include "engine/transfer/gpu_set.h"

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

void gpu_set_close(struct gpu_set **sp) {
    struct gpu_set *s = *sp;
    if (!s) return;
    *sp = NULL;
    pin_close(&s->pin);
    for (int i = 0; i < s->n; i++) ledger_close(&s->ledger[i]), gpu_close(&s->gpu[i]);
    mem_free(s);
}
