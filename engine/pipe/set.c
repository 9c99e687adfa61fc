/* The devices of an engine, and the pinning of its weights: about 0.1 s a GB, so in the background. Until a file is
 * pinned (or where that fails) the loader goes through a pinned staging buffer. */
#include <pthread.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/arch.h"
#include "engine/pipe/pipe.h"

struct gpu_pin {
    pthread_t thread;
    const struct checkpoint *files;
    struct gpu *gpu;
    _Atomic int stop;
    _Atomic int done[]; /* [n_shards] */
};

static void *pin_thread(void *arg) {
    struct gpu_pin *p = arg;
    struct error e = {0};
    for (int i = 0; i < p->files->n_shards && !atomic_load(&p->stop); i++) {
        const struct file_map *m = &p->files->shards[i].map;
        if (m->embedded || !m->size) continue;
        if (!gpu_host_register(p->gpu, m->data, m->size, &e)) atomic_store(&p->done[i], 1);
        else log_say(LOG_INFO, "%s stays unpinned, copies go through a staging buffer: %s", p->files->shards[i].name, e.text);
    }
    return NULL;
}

bool gpu_set_pinned(const struct gpu_set *s, const void *p, size_t size) {
    for (int i = 0; s->pin && i < s->pin->files->n_shards; i++) {
        const struct file_map *m = &s->pin->files->shards[i].map;
        const uint8_t *b = p;
        if (b >= m->data && b < m->data + m->size) return atomic_load(&s->pin->done[i]) && b + size <= m->data + m->size;
    }
    return false;
}

int gpu_set_open(struct gpu_set **out, const char *list, const struct weights *w, struct error *e) {
    struct gpu_spec spec;
    *out = NULL;
    int rc = gpu_parse(&spec, list, e);
    return rc || !spec.n ? rc : gpu_set_open_spec(out, &spec, w, e);
}

int gpu_set_open_spec(struct gpu_set **out, const struct gpu_spec *spec, const struct weights *w, struct error *e) {
    struct gpu_set *s = mem_calloc(1, sizeof *s);
    int rc = 0;
    *out = NULL;
    if (!s) return error_set(e, ERR_MEMORY, "no memory for devices");
    s->spec = *spec;
    for (; s->n < spec->n && !rc; s->n++)
        if ((rc = gpu_open(&s->gpu[s->n], spec, s->n, e))) break;
    if (!rc && !spec->is_virtual && w) {
        struct gpu_pin *p = mem_calloc(1, sizeof *p + (size_t)w->files.n_shards * sizeof p->done[0]);
        if (p) *p = (struct gpu_pin){.files = &w->files, .gpu = s->gpu[0]};
        if (!p || pthread_create(&p->thread, NULL, pin_thread, p)) {
            mem_free(p);
            rc = error_set(e, ERR_MEMORY, "no thread to pin the weights");
        } else s->pin = p;
    }
    if (rc) gpu_set_close(&s);
    *out = s;
    return rc;
}

void gpu_set_close(struct gpu_set **sp) {
    struct gpu_set *s = *sp;
    if (!s) return;
    *sp = NULL;
    if (s->pin) {
        atomic_store(&s->pin->stop, 1);
        pthread_join(s->pin->thread, NULL);
        for (int i = 0; i < s->pin->files->n_shards; i++) {
            const struct file_map *m = &s->pin->files->shards[i].map;
            if (atomic_load(&s->pin->done[i])) gpu_host_unregister(s->gpu[0], m->data, m->size);
        }
        mem_free(s->pin);
    }
    for (int i = 0; i < s->n; i++) gpu_close(&s->gpu[i]);
    mem_free(s);
}
