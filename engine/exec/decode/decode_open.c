#include <assert.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_devices.h"
#include "engine/exec/decode/decode_run.h"
#include "engine/exec/decode/kv_writeback.h"

/* Whether one device, the only one, will hold all weights, so that none are uploaded a second time. */
static bool plans_all_resident(const struct decode *s) {
    int with_experts = 0;
    for (int l = 0; l < s->c->n_layers; l++) with_experts += s->c->layer[l].moe;
    return s->m->gpus->n == 1 && s->n_dev == 1 && s->n_resident == s->c->n_layers &&
           s->dev[0].n_expert_layers == with_experts;
}

int decode_open(struct decode **out, struct runtime *m, enum dtype kv, struct error *e) {
    struct decode *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return error_set(e, ERR_MEMORY, "no memory for decode");
    s->m = m;
    s->c = &m->w->config;
    pthread_mutex_init(&s->lock, NULL);
    s->kv = kv;
    s->last_exec = DECODE_CPU;
    s->cpu_queue = m->cpu_queue;
    decode_set_placement_why(s, m->no_device_decode ? "nothing (CPU requested)" : "nothing (no devices)");
    int rc = kv_writeback_layout_open(&s->layout, s->c, kv, e);
    if (!rc &&
        !(s->expert_rows = mem_calloc((size_t)s->c->n_layers * (size_t)s->c->n_experts + 1, sizeof *s->expert_rows)))
        rc = error_set(e, ERR_MEMORY, "no memory for decode");
    if (!rc && m->gpus && !m->gpus->is_lost && !m->no_device_decode) rc = decode_devices_open(s, e);
    if (!rc) rc = decode_host_open(s, e);
    if (rc && s->n_dev) { /* the device already failed: report why in case the user forced GPU decode */
        struct error why = *e;
        decode_device_error(s, &why);
        log_say(LOG_WARN, "%s; sessions decode on the CPU", why.text);
        rc = decode_fall_back(s, why.text, e);
    }
    if (!rc && m->gpus && !plans_all_resident(s)) pin_start(m->gpus->pin);
    *out = s;
    if (rc) decode_close(out);
    return rc;
}

void decode_close(struct decode **sp) {
    struct decode *s = *sp;
    if (!s) return;
    *sp = NULL;
    assert(!decode_is_locked(s));
    decode_host_close(s);
    decode_devices_close(s);
    buf_free(&s->routing_lines);
    mem_free(s->expert_rows);
    kv_writeback_layout_close(&s->layout);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
