/* Spans of work between two events of a stream, written as a Chrome trace (chrome://tracing, Perfetto): a process a rank,
 * a thread a lane. Events hold the device's own times, virtual ones where time is. */
#include <pthread.h>
#include <stdlib.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/pipe/internal.h"

struct trace_span {
    struct gpu_event *begin, *end;
    const char *name;
    int rank, layer, item;
    enum trace_lane lane;
    bool whole;
};
struct trace {
    pthread_mutex_t lock;
    struct trace_span *spans;
    size_t n, cap;
};
static const char *const lanes[LANES] = {"loader", "compute", "unloader", "exchange"};

struct trace *trace_open(void) {
    struct trace *t = mem_calloc(1, sizeof *t);
    if (t) pthread_mutex_init(&t->lock, NULL);
    return t;
}
void trace_close(struct trace **tp) {
    struct trace *t = *tp;
    if (!t) return;
    for (size_t i = 0; i < t->n; i++) gpu_event_close(&t->spans[i].begin), gpu_event_close(&t->spans[i].end);
    pthread_mutex_destroy(&t->lock);
    mem_free(t->spans);
    mem_free(t);
    *tp = NULL;
}

int trace_begin(struct trace *t, struct gpu_stream *s, int rank, enum trace_lane lane, const char *name, int layer, int item) {
    struct trace_span a = {.name = name, .rank = rank, .lane = lane, .layer = layer, .item = item};
    struct gpu *g = gpu_stream_gpu(s);
    if (!t || gpu_event_open(g, &a.begin, NULL)) return -1;
    if (gpu_event_open(g, &a.end, NULL)) {
        gpu_event_close(&a.begin);
        return -1;
    }
    gpu_event_record(a.begin, s);
    pthread_mutex_lock(&t->lock);
    int at = mem_grow(&t->spans, &t->cap, t->n + 1, sizeof *t->spans) ? -1 : (int)t->n++;
    if (at >= 0) t->spans[at] = a;
    pthread_mutex_unlock(&t->lock);
    if (at < 0) { /* the record of begin is still queued */
        gpu_event_sync(a.begin);
        gpu_event_close(&a.begin);
        gpu_event_close(&a.end);
    }
    return at;
}
void trace_end(struct trace *t, int handle, struct gpu_stream *s) {
    if (!t || handle < 0) return;
    pthread_mutex_lock(&t->lock);
    gpu_event_record(t->spans[handle].end, s);
    t->spans[handle].whole = true;
    pthread_mutex_unlock(&t->lock);
}

struct piece {
    double begin, end;
};
static int by_begin(const void *a, const void *b) {
    const struct piece *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}
/* The times a lane was busy, as disjoint pieces in order; *n of them. */
static struct piece *busy(const struct trace *t, int rank, enum trace_lane lane, size_t *n) {
    struct piece *p = mem_alloc((t->n + 1) * sizeof *p);
    size_t k = 0, out = 0;
    *n = 0;
    if (!p) return NULL;
    for (size_t i = 0; i < t->n; i++)
        if (t->spans[i].rank == rank && t->spans[i].lane == lane && t->spans[i].whole)
            p[k++] = (struct piece){gpu_event_time(t->spans[i].begin), gpu_event_time(t->spans[i].end)};
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
    struct piece *p = busy(t, rank, lane, &n);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i].end - p[i].begin;
    mem_free(p);
    return sum;
}
double trace_both(const struct trace *t, int rank, enum trace_lane a, enum trace_lane b) {
    size_t n, m, i = 0, k = 0;
    struct piece *p = busy(t, rank, a, &n), *q = busy(t, rank, b, &m);
    double sum = 0;
    while (i < n && k < m) {
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
        if (t->spans[i].rank != rank || !t->spans[i].whole) continue;
        double begin = gpu_event_time(t->spans[i].begin), end = gpu_event_time(t->spans[i].end);
        first = !any || begin < first ? begin : first;
        last = end > last ? end : last;
        any = true;
    }
    return last - first;
}

int trace_write(const struct trace *t, const char *path, struct error *e) {
    struct buf b = {0};
    int ranks = 0;
    buf_str(&b, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (size_t i = 0; i < t->n; i++) {
        const struct trace_span *s = &t->spans[i];
        if (!s->whole) continue;
        double begin = gpu_event_time(s->begin), end = gpu_event_time(s->end);
        buf_fmt(&b, "%s\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"layer\":%d",
                ranks ? "," : "", s->name, s->rank, (int)s->lane, begin * 1e6, (end - begin) * 1e6, s->layer);
        buf_fmt(&b, s->item >= 0 ? ",\"item\":%d}}" : "}}", s->item);
        ranks = s->rank + 1 > ranks ? s->rank + 1 : ranks;
    }
    for (int r = 0; r < ranks; r++)
        for (int l = 0; l < LANES; l++)
            buf_fmt(&b, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", r, l, lanes[l]);
    buf_str(&b, "\n]}\n");
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory for the trace") : file_write(path, b.data, b.len, e);
    buf_free(&b);
    return rc;
}
