#include "engine/transfer/link_meter.h"

#include "base/test_limits.h"

int link_meter_open(struct link_meter *m, struct gpu *g, bool is_on, struct error *e) {
    int rc = 0;
    m->timing = -1;
    pthread_mutex_init(&m->lock, NULL);
    for (int i = 0; i < LINK_METER_UNITS && is_on && !gpu_info(g)->is_virtual && !rc; i++) {
        rc = gpu_event_open_timed(g, &m->unit[i].begin, e);
        if (!rc) rc = gpu_event_open_timed(g, &m->unit[i].end, e);
    }
    return rc;
}
void link_meter_close(struct link_meter *m) {
    for (int i = 0; i < LINK_METER_UNITS; i++) gpu_event_close(&m->unit[i].begin), gpu_event_close(&m->unit[i].end);
    pthread_mutex_destroy(&m->lock);
}
bool link_meter_is_on(const struct link_meter *m) { return m->unit[LINK_METER_UNITS - 1].end != NULL; }

static void add_time(struct link_meter *m, double bytes, double seconds) {
    if (!(seconds > 0)) return;
    pthread_mutex_lock(&m->lock);
    const int at = m->n++ % LINK_METER_UNITS;
    m->seconds[at] = seconds, m->per_byte[at] = seconds / bytes;
    pthread_mutex_unlock(&m->lock);
}
void link_meter_begin(struct link_meter *m, struct gpu_stream *s) {
    m->timing = -1;
    for (int i = 0; i < LINK_METER_UNITS && link_meter_is_on(m); i++) {
        if (m->unit[i].is_pending && gpu_event_is_done(m->unit[i].end)) {
            m->unit[i].is_pending = false;
            add_time(m, (double)m->unit[i].bytes, gpu_event_elapsed(m->unit[i].begin, m->unit[i].end));
        }
        if (!m->unit[i].is_pending) m->timing = i;
    }
    if (m->timing < 0) return; /* all events are on the stream */
    m->unit[m->timing].bytes = 0;
    if (gpu_event_record(m->unit[m->timing].begin, s)) m->timing = -1;
}
void link_meter_count(struct link_meter *m, size_t bytes) {
    if (m->timing >= 0) m->unit[m->timing].bytes += bytes;
}
void link_meter_end(struct link_meter *m, struct gpu_stream *s) {
    if (m->timing >= 0 && m->unit[m->timing].bytes >= test_limits_get(TEST_LIMIT_METER_BYTES, LINK_METER_BYTES))
        m->unit[m->timing].is_pending = !gpu_event_record(m->unit[m->timing].end, s);
    m->timing = -1;
}

bool link_meter_take(struct link_meter *m, double *bytes, double *seconds) {
    pthread_mutex_lock(&m->lock);
    const bool is_full = m->n >= LINK_METER_UNITS;
    for (int i = 0; i < LINK_METER_UNITS && is_full; i++) {
        int faster = 0;
        for (int k = 0; k < LINK_METER_UNITS; k++)
            faster += m->per_byte[k] < m->per_byte[i] || (k < i && !(m->per_byte[i] < m->per_byte[k]));
        if (faster == LINK_METER_UNITS / 2) *seconds = m->seconds[i], *bytes = m->seconds[i] / m->per_byte[i];
    }
    if (is_full) m->n = 0;
    pthread_mutex_unlock(&m->lock);
    return is_full;
}
