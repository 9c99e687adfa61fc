/* Execution trace, written in Chrome's format (chrome://tracing, Perfetto): a process per rank, a thread per lane.
 * Times are the devices', virtual on virtual devices. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/transfer/trace.h"

struct trace_span {
    struct gpu_event *begin, *end; /* NULL: from and to are valid */
    double from_s, to_s;
    const char *name;
    int rank, layer, item;
    enum trace_lane lane;
    bool is_complete;
};
struct trace {
    pthread_mutex_t lock;
    struct trace_span *spans;
    size_t n, cap, settled, written; /* spans; prefix with all times read; spans in the file */
    double clock_offset_s;           /* from the host's clock to the devices' */
    _Atomic bool is_full;            /* spans were dropped */
    bool has_failed;                 /* the file cannot be written */
};
static const char *const lanes[LANES] = {"loader", "compute", "unloader", "exchange"};

struct trace *trace_open(void) {
    struct trace *t = mem_calloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_init(&t->lock, NULL);
    t->clock_offset_s = -clock_now();
    return t;
}
static void close_events(struct trace_span *a) {
    gpu_event_close(&a->begin);
    gpu_event_close(&a->end);
}
void trace_close(struct trace **tp) {
    struct trace *t = *tp;
    if (!t) return;
    for (size_t i = 0; i < t->n; i++) close_events(&t->spans[i]);
    pthread_mutex_destroy(&t->lock);
    mem_free(t->spans);
    mem_free(t);
    *tp = NULL;
}

/* The event's time is between two readings of the host clock; uses the narrowest of a few attempts. */
void trace_align_clock(struct trace *t, struct gpu *g) {
    struct gpu_stream *s = NULL;
    struct gpu_event *ev = NULL;
    double best = 1;
    if (!t || gpu_stream_open(g, &s, "trace", true, NULL, &(struct error){0})) return;
    for (int i = 0; i < 8 && !gpu_event_open_timed(g, &ev, NULL); i++) {
        double before = clock_now();
        int rc = gpu_event_record(ev, s);
        if (!rc) rc = gpu_event_sync(ev);
        double after = clock_now();
        if (!rc && after - before < best)
            best = after - before, t->clock_offset_s = gpu_event_time(ev) - (before + after) / 2;
        gpu_event_close(&ev);
    }
    gpu_stream_close(&s);
}

static int add_span(struct trace *t, const struct trace_span *a) {
    pthread_mutex_lock(&t->lock);
    if (t->n >= TRACE_SPANS) t->is_full = true;
    int at = t->is_full || mem_grow(&t->spans, &t->cap, t->n + 1, sizeof *t->spans) ? -1 : (int)t->n++;
    if (at >= 0) t->spans[at] = *a;
    pthread_mutex_unlock(&t->lock);
    return at;
}

int trace_begin(struct trace *t, struct gpu_stream *s, int rank, enum trace_lane lane, const char *name, int layer,
                int item) {
    struct trace_span a = {.name = name, .rank = rank, .lane = lane, .layer = layer, .item = item};
    if (!t || t->is_full) return -1;
    struct gpu *g = gpu_stream_gpu(s);
    if (gpu_event_open_timed(g, &a.begin, NULL)) return -1;
    if (gpu_event_open_timed(g, &a.end, NULL)) {
        gpu_event_close(&a.begin);
        return -1;
    }
    gpu_event_record(a.begin, s);
    int at = add_span(t, &a);
    if (at < 0) { /* recording begin may still be queued */
        gpu_event_sync(a.begin);
        close_events(&a);
    }
    return at;
}
void trace_end(struct trace *t, int handle, struct gpu_stream *s) {
    if (!t || handle < 0) return;
    pthread_mutex_lock(&t->lock);
    gpu_event_record(t->spans[handle].end, s);
    t->spans[handle].is_complete = true;
    pthread_mutex_unlock(&t->lock);
}

void trace_add_span(struct trace *t, struct gpu_event *begin, struct gpu_stream *s, int rank, enum trace_lane lane,
                    const char *name, int layer, int item) {
    struct trace_span a = {
        .name = name, .rank = rank, .lane = lane, .layer = layer, .item = item, .begin = begin, .is_complete = true};
    if (gpu_event_open_timed(gpu_stream_gpu(s), &a.end, NULL)) {
        gpu_event_sync(begin);
        gpu_event_close(&a.begin);
        return;
    }
    gpu_event_record(a.end, s);
    if (add_span(t, &a) >= 0) return;
    gpu_event_sync(a.end);
    close_events(&a);
}

double trace_now(const struct trace *t) { return t ? clock_now() + t->clock_offset_s : 0; }
void trace_cpu(struct trace *t, double begin, const char *name, int layer, int item) {
    if (t)
        add_span(t, &(struct trace_span){.name = name,
                                         .rank = TRACE_CPU,
                                         .lane = LANE_COMPUTE,
                                         .layer = layer,
                                         .item = item,
                                         .from_s = begin,
                                         .to_s = trace_now(t),
                                         .is_complete = true});
}

static double span_begin_s(const struct trace_span *a) { return a->begin ? gpu_event_time(a->begin) : a->from_s; }
static double span_end_s(const struct trace_span *a) { return a->end ? gpu_event_time(a->end) : a->to_s; }
void trace_settle(struct trace *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    bool all = true;
    for (size_t i = t->settled; i < t->n; i++) {
        struct trace_span *a = &t->spans[i];
        /* a span without an end was abandoned */
        if (a->begin && gpu_event_is_done(a->begin) && (!a->is_complete || gpu_event_is_done(a->end))) {
            a->from_s = span_begin_s(a);
            a->to_s = span_end_s(a);
            close_events(a);
        }
        all &= !a->begin;
        if (all) t->settled = i + 1;
    }
    pthread_mutex_unlock(&t->lock);
}
void trace_merge(struct trace *t, struct trace *other, int device) {
    trace_settle(other);
    for (size_t i = 0; t && i < other->n; i++) {
        other->spans[i].rank += device;
        if (other->spans[i].is_complete && !other->spans[i].begin) add_span(t, &other->spans[i]);
    }
}

struct interval {
    double begin, end;
};
static int by_begin(const void *a, const void *b) {
    const struct interval *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}
/* Returns a lane's busy times as *n disjoint intervals in order. */
static struct interval *busy_intervals(const struct trace *t, int rank, enum trace_lane lane, size_t *n) {
    struct interval *p = mem_alloc((t->n + 1) * sizeof *p);
    size_t k = 0, out = 0;
    *n = 0;
    if (!p) return NULL;
    for (size_t i = 0; i < t->n; i++)
        if (t->spans[i].rank == rank && t->spans[i].lane == lane && t->spans[i].is_complete)
            p[k++] = (struct interval){span_begin_s(&t->spans[i]), span_end_s(&t->spans[i])};
    qsort(p, k, sizeof *p, by_begin);
    for (size_t i = 0; i < k; i++) {
        if (out && p[i].begin <= p[out - 1].end) p[out - 1].end = p[i].end > p[out - 1].end ? p[i].end : p[out - 1].end;
        else p[out++] = p[i];
    }
    *n = out;
    return p;
}
double trace_busy(const struct trace *t, int rank, enum trace_lane lane) {
    size_t n;
    struct interval *p = busy_intervals(t, rank, lane, &n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i].end - p[i].begin;
    mem_free(p);
    return sum;
}
double trace_overlap(const struct trace *t, int rank_a, enum trace_lane a, int rank_b, enum trace_lane b) {
    size_t n, m, i = 0, k = 0;
    struct interval *p = busy_intervals(t, rank_a, a, &n), *q = busy_intervals(t, rank_b, b, &m);
    double sum = 0;
    while (p && q && i < n && k < m) {
        double lo = p[i].begin > q[k].begin ? p[i].begin : q[k].begin, hi = p[i].end < q[k].end ? p[i].end : q[k].end;
        if (hi > lo) sum += hi - lo;
        if (p[i].end < q[k].end) i++;
        else k++;
    }
    mem_free(p);
    mem_free(q);
    return sum;
}

double trace_span(const struct trace *t, int rank) {
    double first = 0, last = 0;
    bool any = false;
    for (size_t i = 0; i < t->n; i++) {
        if (t->spans[i].rank != rank || !t->spans[i].is_complete) continue;
        double begin = span_begin_s(&t->spans[i]), end = span_end_s(&t->spans[i]);
        first = !any || begin < first ? begin : first;
        last = end > last ? end : last;
        any = true;
    }
    return last - first;
}

int trace_write(const struct trace *t, const char *path, struct error *e) {
    struct buf b = {0};
    bool any[TRACE_CPU + 1] = {0};
    const char *comma = "";
    buf_str(&b, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_span *s = &t->spans[i];
        if (!s->is_complete) continue;
        double begin = span_begin_s(s), end = span_end_s(s);
        buf_fmt(&b, "%s\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{",
                comma, s->name, s->rank, (int)s->lane, begin * 1e6, (end - begin) * 1e6);
        if (s->layer >= 0) buf_fmt(&b, "\"layer\":%d", s->layer);
        if (s->item >= 0) buf_fmt(&b, "%s\"item\":%d", s->layer >= 0 ? "," : "", s->item);
        buf_str(&b, "}}");
        comma = ",";
        any[s->rank] = true;
    }
    for (int r = 0; r <= TRACE_CPU; r++) {
        if (!any[r]) continue;
        if (r == TRACE_CPU)
            buf_fmt(&b, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"CPU\"}}", r);
        else
            buf_fmt(&b, ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"device %d\"}}", r,
                    r);
        for (int l = r == TRACE_CPU ? LANE_COMPUTE : 0; l < (r == TRACE_CPU ? LANE_COMPUTE + 1 : LANES); l++)
            buf_fmt(&b, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                    r, l, lanes[l]);
    }
    buf_str(&b, "\n]");
    if (t->is_full) buf_fmt(&b, ",\n\"otherData\":{\"note\":\"spans after the first %d are missing\"}", TRACE_SPANS);
    buf_str(&b, "}\n");
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory for the trace") : file_write(path, b.data, b.len, e);
    buf_free(&b);
    return rc;
}

void trace_save(struct trace *t, const char *path, bool last) {
    struct error e = {0};
    struct stat st;
    if (!t || t->has_failed || (!last && !lstat(path, &st) && !S_ISREG(st.st_mode))) return;
    trace_settle(t);
    pthread_mutex_lock(&t->lock);
    if (t->n > t->written && trace_write(t, path, &e)) {
        log_say(LOG_WARN, "%s", e.text);
        t->has_failed = true;
    }
    t->written = t->n;
    pthread_mutex_unlock(&t->lock);
}
