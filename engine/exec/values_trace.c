#include "engine/exec/values_trace.h"

#include <math.h>

#include "base/hash.h"
#include "base/mem.h"
#include "engine/exec/trace_file.h"

enum { SHOWN = 8 }; /* first values of a line */

struct values_trace {
    struct op_viewer viewer; /* first member: view() receives its address */
    struct trace_file file;
};

static void add_number(struct buf *b, double v) {
    if (isfinite(v)) buf_fmt(b, "%.9g", v);
    else buf_str(b, "null");
}

static void view(struct op_viewer *viewer, int layer, const char *stage, const float *rows, int n, int m, int ld) {
    struct values_trace *t = (struct values_trace *)viewer;
    struct buf *b = &t->file.text;
    uint64_t checksum = 0;
    double sum = 0;
    if (t->file.has_failed) return;
    for (int i = 0; i < n; i++) {
        const float *row = rows + (size_t)i * (size_t)ld;
        checksum = hash64(row, (size_t)m * sizeof *row, checksum);
        for (int k = 0; k < m; k++) sum += (double)row[k];
    }
    buf_fmt(b, "{\"layer\":%d,\"stage\":\"%s\",\"shape\":[%d,%d],\"checksum\":\"%016llx\",\"sum\":", layer, stage, n, m,
            (unsigned long long)checksum);
    add_number(b, sum);
    buf_str(b, ",\"first\":[");
    for (int k = 0; k < m && k < SHOWN; k++) {
        if (k) buf_char(b, ',');
        add_number(b, (double)rows[k]);
    }
    buf_str(b, "]}\n");
    trace_file_flush(&t->file);
}

int values_trace_open(struct values_trace **out, const char *path, struct exec *x, struct error *e) {
    struct values_trace *t = *out = mem_calloc(1, sizeof *t);
    if (!t) return error_set(e, ERR_MEMORY, "no memory for the trace of values");
    t->viewer.view = view;
    x->viewer = &t->viewer;
    return trace_file_open(&t->file, path, "trace of values", e);
}

void values_trace_close(struct values_trace **tp) {
    struct values_trace *t = *tp;
    if (!t) return;
    *tp = NULL;
    trace_file_close(&t->file);
    mem_free(t);
}
