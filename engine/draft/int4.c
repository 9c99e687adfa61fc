#include "engine/draft/int4.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "cpu/kernels.h"

enum { ALIGN = 64, PIECE = 4 << 20, STRIPE = 128, REST = 199 };
/* seconds of work between rests while the CPU is busy; a rest takes REST times as long */
static const double STINT_S = 1e-3;

struct int4_header {
    char magic[8]; /* "hearthI4" */
    uint32_t version, n_layers, n_experts, group;
    uint64_t fingerprint, sample; /* identify the checkpoint: hashes of its headers and of some weights */
    uint64_t layer_bytes;         /* bytes per layer with experts; layers are contiguous from `at` */
    uint64_t data_offset;
    uint64_t sum; /* of this struct with 0 here, and of the following sums [n_layers], one per layer */
};

struct int4 {
    const struct weights *w;
    struct kernels k;
    char *dir;
    struct expert **experts;                  /* [n_layers] */
    uint64_t expert_bytes, layer_bytes, size; /* bytes of one expert, of a layer, of all */
    uint8_t *data;                            /* [size] allocated pages or the mapped file */
    bool owns_pages;
    struct file_map map;
    uint64_t *sums; /* [n_layers] */
    pthread_t thread;
    bool started;
    _Atomic bool stop, ready, busy;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signals stop and busy, which change under the lock */
    double stint_began;     /* the background thread's CPU time when its stint began; < 0: no rest needed */
};

/* --- Rate limit ------------------------------------------------------------------------------- */

static double thread_cpu_s(void) { /* CPU seconds of this thread */
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Called between units of work; rests if due. False: stopped. */
static bool pace(struct int4 *d) {
    if (!atomic_load(&d->busy)) d->stint_began = -1;
    else if (d->stint_began < 0) d->stint_began = thread_cpu_s();
    else if (thread_cpu_s() - d->stint_began > STINT_S) {
        const double until = clock_now() + REST * (thread_cpu_s() - d->stint_began);
        const struct timespec at = {.tv_sec = (time_t)until, .tv_nsec = (long)((until - floor(until)) * 1e9)};
        pthread_mutex_lock(&d->lock);
        while (atomic_load(&d->busy) && !atomic_load(&d->stop) && cond_wait_until(&d->changed, &d->lock, &at)) {
        }
        pthread_mutex_unlock(&d->lock);
        d->stint_began = thread_cpu_s();
    }
    return !atomic_load(&d->stop);
}

static void set_flag(struct int4 *d, _Atomic bool *what, bool to) {
    if (atomic_load(what) == to) return;
    pthread_mutex_lock(&d->lock);
    atomic_store(what, to);
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

void int4_set_cpu_busy(struct int4 *d, bool busy) { set_flag(d, &d->busy, busy); }

/* --- Rows ------------------------------------------------------------------------------------- */

/* Of 16 levels the outermost goes to the sign of the largest number, and numbers beyond INT4_CLIP of it become that:
 * the others' error weighs more. For normal weights the mean square is 0.72 of what 15 levels up to the largest leave,
 * least at 0.93 (test/bench/drafts.md). */
#define INT4_CLIP 0.93f
void int4_row(const float *x, int n, uint8_t *codes, uint16_t *scales) {
    for (int c0 = 0; c0 < n; c0 += INT4_GROUP, codes += INT4_GROUP / 2) {
        const int m = n - c0 < INT4_GROUP ? n - c0 : INT4_GROUP;
        float most = 0;
        uint8_t code[INT4_GROUP];
        for (int c = 0; c < m; c++) most = fabsf(x[c0 + c]) > fabsf(most) ? x[c0 + c] : most;
        const uint16_t scale = f32_to_bf16(most * (INT4_CLIP / -8));
        const float s = bf16_to_f32(scale), by = fabsf(s) > 1e-37f ? 1 / s : 0;
        for (int c = 0; c < INT4_GROUP; c++) {
            const float v = c < m ? x[c0 + c] * by + 8.5f : 8.5f;
            /* NaN: arbitrary code; computing with it is detected elsewhere */
            code[c] = v > 0 ? (uint8_t)(v < 15 ? v : 15) : 0;
        }
        for (int c = 0; c < INT4_GROUP / 2; c++) codes[c] = (uint8_t)((code[c] & 15) | code[INT4_GROUP / 2 + c] << 4);
        *scales++ = scale;
    }
}

static uint64_t code_bytes(int rows, int cols) { return (uint64_t)rows * dtype_bytes(DT_INT4, (size_t)cols); }
static uint64_t scale_bytes(int rows, int cols) {
    return ((uint64_t)rows * (uint64_t)((cols + INT4_GROUP - 1) / INT4_GROUP) * 2 + ALIGN - 1) / ALIGN * ALIGN;
}

/* of gate, up and down */
static bool is_transposed(const struct expert *e, int i) { return i < 2 ? e->gate_up_transposed : e->is_transposed; }
/* Rows and columns of an expert's gate, up and down as multiplied. */
static void expert_shapes(const struct expert *e, int shape[3][2]) {
    const struct mat *m[3] = {&e->gate, &e->up, &e->down};
    for (int i = 0; i < 3; i++) {
        const bool transposed = is_transposed(e, i);
        shape[i][0] = transposed ? m[i]->cols : m[i]->rows, shape[i][1] = transposed ? m[i]->rows : m[i]->cols;
    }
}
static uint64_t expert_bytes(const struct expert *e) {
    uint64_t sum = 0;
    int shape[3][2];
    expert_shapes(e, shape);
    for (int i = 0; i < 3; i++) sum += code_bytes(shape[i][0], shape[i][1]) + scale_bytes(shape[i][0], shape[i][1]);
    return sum;
}

/* Views an expert stored at p: codes of all three matrices, then scales. */
static struct expert expert_view(const struct expert *e, const uint8_t *p) {
    struct expert v = *e;
    struct mat *m[3] = {&v.gate, &v.up, &v.down};
    int shape[3][2];
    expert_shapes(e, shape);
    v.is_transposed = v.gate_up_transposed = false;
    for (int i = 0; i < 3; i++) {
        const int rows = shape[i][0], cols = shape[i][1];
        if (!rows) continue; /* no up */
        *m[i] = (struct mat){.data = p,
                             .stride = dtype_bytes(DT_INT4, (size_t)cols),
                             .rows = rows,
                             .cols = cols,
                             .block_rows = 1,
                             .block_cols = INT4_GROUP,
                             .scale_stride = (cols + INT4_GROUP - 1) / INT4_GROUP,
                             .row_step = 1,
                             .dtype = DT_INT4,
                             .scale_dtype = DT_BF16};
        p += code_bytes(rows, cols);
    }
    for (int i = 0; i < 3; i++)
        if (shape[i][0]) m[i]->scale = p, p += scale_bytes(shape[i][0], shape[i][1]);
    return v;
}

/* to: from expert_view(), to be written. */
static void convert_row(const struct mat *to, int r, const float *x) {
    int4_row(x, to->cols, (uint8_t *)(uintptr_t)to->data + (size_t)r * to->stride,
             (uint16_t *)(uintptr_t)to->scale + (size_t)r * (size_t)to->scale_stride);
}
static void convert_transposed(struct int4 *d, const struct mat *m, const struct mat *to, float *row, float *stripe) {
    for (int c0 = 0; c0 < m->cols && pace(d); c0 += STRIPE) {
        const int c1 = c0 + STRIPE < m->cols ? c0 + STRIPE : m->cols;
        for (int r = 0; r < m->rows; r++) d->k.decode[m->dtype](stripe + (size_t)r * STRIPE, m, r, c0, c1);
        for (int c = c0; c < c1; c++) {
            for (int r = 0; r < m->rows; r++) row[r] = stripe[(size_t)r * STRIPE + (size_t)(c - c0)];
            convert_row(to, c, row);
        }
    }
}
/* row: room for two of the widest. */
static void convert_expert(struct int4 *d, const struct expert *from, const struct expert *to, float *row,
                           float *stripe) {
    const struct mat *m[3] = {&from->gate, &from->up, &from->down}, *out[3] = {&to->gate, &to->up, &to->down};
    for (int i = 0; i < 3; i++) {
        if (is_transposed(from, i)) convert_transposed(d, m[i], out[i], row, stripe);
        for (int r = 0; r < m[i]->rows && !is_transposed(from, i) && pace(d); r++) {
            float *own = m[i]->order ? row + m[i]->cols : row; /* x's order */
            d->k.decode[m[i]->dtype](row, m[i], r, 0, m[i]->cols);
            for (int c = 0; c < m[i]->cols && m[i]->order; c++) own[m[i]->order[c]] = row[c];
            convert_row(out[i], r, own);
        }
    }
}

/* --- Memory ----------------------------------------------------------------------------------- */

/* FFNs of a layer that are converted: its routed experts; in a model without experts its dense FFN. NULL: none. */
static const struct expert *ffns_of(const struct weights *w, int layer) {
    const struct expert *dense = &w->layers[layer].dense;
    return w->config.n_experts ? w->layers[layer].experts : dense->gate.data ? dense : NULL;
}
static int n_ffns(const struct weights *w) { return w->config.n_experts ? w->config.n_experts : 1; }
static bool has_experts(const struct int4 *d, int layer) { return ffns_of(d->w, layer) != NULL; }
static uint8_t *layer_at(const struct int4 *d, int layer) {
    uint64_t at = 0;
    for (int i = 0; i < layer; i++) at += has_experts(d, i) ? d->layer_bytes : 0;
    return d->data + at;
}
static void set_views(struct int4 *d) {
    for (int l = 0; l < d->w->config.n_layers; l++)
        for (int i = 0; i < n_ffns(d->w) && has_experts(d, l); i++)
            d->experts[l][i] = expert_view(&ffns_of(d->w, l)[i], layer_at(d, l) + (uint64_t)i * d->expert_bytes);
}
/* Incomplete if the thread is stopped. */
static uint64_t layer_sum(struct int4 *d, int layer) {
    uint64_t sum = (uint64_t)layer;
    for (uint64_t i = 0; i < d->layer_bytes && pace(d); i += PIECE)
        sum = hash64(layer_at(d, layer) + i, d->layer_bytes - i < PIECE ? d->layer_bytes - i : PIECE, sum);
    return sum;
}

/* Two trainings of one model have equal headers: hash some rows, too. */
static uint64_t sample_hash(const struct int4 *d) {
    uint64_t sum = 0;
    for (int l = 0; l < d->w->config.n_layers; l++) {
        const struct expert *x = ffns_of(d->w, l);
        if (x) sum = hash64(x->gate.data, dtype_bytes(x->gate.dtype, (size_t)x->gate.cols), sum);
    }
    return sum;
}

static int convert_all(struct int4 *d, struct error *e) {
    const struct config *c = &d->w->config;
    size_t widest = 0;
    bool transposed = false;
    for (int l = 0; l < c->n_layers; l++) { /* dense FFNs may have a width of their own */
        const struct expert *x = ffns_of(d->w, l);
        int shape[3][2];
        if (!x) continue;
        expert_shapes(x, shape);
        for (int i = 0; i < 3; i++) widest = (size_t)shape[i][1] > widest ? (size_t)shape[i][1] : widest;
        transposed |= x->is_transposed || x->gate_up_transposed;
    }
    float *row = mem_alloc((2 * widest + 64) * sizeof *row),
          *stripe = transposed ? mem_alloc(widest * STRIPE * sizeof *stripe) : NULL;
    int rc = !row || (transposed && !stripe) ? error_set(e, ERR_MEMORY, "not enough memory to convert the experts") : 0;
    if (!rc && !(d->data = mem_pages(d->size, 0)))
        rc = error_set(e, ERR_MEMORY, "no memory for %" PRIu64 " MB of experts", d->size >> 20);
    d->owns_pages = d->data != NULL;
    if (!rc) set_views(d);
    for (int l = 0; l < c->n_layers && !rc; l++) {
        for (int i = 0; i < n_ffns(d->w) && has_experts(d, l) && !atomic_load(&d->stop); i++)
            convert_expert(d, &ffns_of(d->w, l)[i], &d->experts[l][i], row, stripe);
        if (atomic_load(&d->stop)) rc = error_set(e, ERR_CANCELLED, "stopped");
        else d->sums[l] = has_experts(d, l) ? layer_sum(d, l) : 0;
    }
    mem_free(row);
    mem_free(stripe);
    return rc;
}

/* --- The file --------------------------------------------------------------------------------- */

static void make_path(const struct int4 *d, char *out, size_t cap) {
    snprintf(out, cap, "%s/%016" PRIx64 ".int4", d->dir, d->w->files.fingerprint);
}
static struct int4_header make_header(const struct int4 *d) {
    const struct config *c = &d->w->config;
    struct int4_header h = {.magic = "hearthI4", /* without the terminator */
                            .version = INT4_VERSION,
                            .n_layers = (uint32_t)c->n_layers,
                            .n_experts = (uint32_t)n_ffns(d->w),
                            .group = INT4_GROUP,
                            .fingerprint = d->w->files.fingerprint,
                            .sample = sample_hash(d),
                            .layer_bytes = d->layer_bytes,
                            .data_offset = (sizeof(struct int4_header) + (uint64_t)c->n_layers * 8 + MEM_PAGE - 1) /
                                           MEM_PAGE * MEM_PAGE};
    return h;
}
static uint64_t header_sum(const struct int4_header *h, const uint64_t *sums) {
    return hash64(sums, (size_t)h->n_layers * 8, hash64(h, offsetof(struct int4_header, sum), 0));
}

/* 0: valid and mapped. ERR_RUNTIME: missing or unusable; *why is set if damaged. */
static int read_int4_file(struct int4 *d, char *why, size_t cap) {
    char path[4096];
    struct error e = {0};
    struct int4_header h = make_header(d);
    *why = 0;
    make_path(d, path, sizeof path);
    if (access(path, F_OK)) return ERR_RUNTIME;
    if (file_map(&d->map, path, &e)) {
        snprintf(why, cap, "%s", e.text);
        return ERR_RUNTIME;
    }
    const uint64_t *sums = (const uint64_t *)(d->map.data + sizeof h);
    bool good = d->map.size == h.data_offset + d->size;
    if (good) h.sum = header_sum(&h, sums), good = !memcmp(&h, d->map.data, sizeof h);
    d->data = (uint8_t *)(uintptr_t)d->map.data + h.data_offset;
    for (int l = 0; l < d->w->config.n_layers && good && !atomic_load(&d->stop); l++) {
        if (!has_experts(d, l)) continue;
        file_map_prefetch(layer_at(d, l), d->layer_bytes);
        good = layer_sum(d, l) == sums[l];
    }
    if (good && !atomic_load(&d->stop)) {
        set_views(d);
        return 0;
    }
    if (!good && !atomic_load(&d->stop)) snprintf(why, cap, "%s is damaged or of another version", path);
    file_unmap(&d->map);
    d->data = NULL;
    return atomic_load(&d->stop) ? ERR_CANCELLED : ERR_RUNTIME;
}

static int write_contents(struct int4 *d, int fd) {
    struct int4_header h = make_header(d);
    uint8_t none[MEM_PAGE] = {0};
    h.sum = header_sum(&h, d->sums);
    int rc = file_write_all(fd, &h, sizeof h);
    uint64_t at = sizeof h + (uint64_t)h.n_layers * 8;
    if (!rc) rc = file_write_all(fd, d->sums, (size_t)h.n_layers * 8);
    if (!rc) rc = file_write_all(fd, none, h.data_offset - at);
    for (uint64_t i = 0; i < d->size && !rc; i += PIECE)
        rc = pace(d) ? file_write_all(fd, d->data + i, d->size - i < PIECE ? d->size - i : PIECE) : -ECANCELED;
    return rc;
}

/* Writes to an unnamed file that is linked when complete, so a crash leaves nothing. */
static int write_int4_file(struct int4 *d) {
    char path[4096], link[40];
    struct statvfs fs;
    make_path(d, path, sizeof path);
    if (file_mkdirs(d->dir, &(struct error){0})) return -EACCES;
    if (statvfs(d->dir, &fs)) return -errno;
    if ((uint64_t)fs.f_bavail * fs.f_frsize < d->size + (d->size >> 4)) return -ENOSPC;
    int fd = fault_hit(FAULT_OPEN) ? (errno = EIO, -1) : open(d->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600), rc;
    if (fd < 0) return -errno;
    if (!(rc = write_contents(d, fd))) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        if (unlink(path)) errno = 0; /* a damaged one; usually absent */
        if (fault_hit(FAULT_RENAME)) rc = -EIO;
        else if (linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) && errno != EEXIST)
            rc = -errno; /* EEXIST: another process has written the same file */
    }
    close(fd);
    return rc;
}

/* --- The thread ------------------------------------------------------------------------------- */

static void *int4_thread(void *arg) {
    struct int4 *d = arg;
    struct error e = {0};
    char why[4400] = "";
    const double begin = clock_now();
    setpriority(PRIO_PROCESS, (id_t)gettid(), 10); /* affects this thread only */
    int rc = d->dir ? read_int4_file(d, why, sizeof why) : ERR_RUNTIME;
    const bool read = !rc;
    if (*why) log_say(LOG_WARN, "converting the INT4 draft again: %s", why);
    if (rc == ERR_RUNTIME) rc = convert_all(d, &e);
    if (rc) {
        if (rc != ERR_CANCELLED) log_say(LOG_WARN, "INT4 draft disabled: %s", e.text);
        return NULL;
    }
    atomic_store(&d->ready, true);
    log_say(LOG_INFO, "INT4 draft ready: %" PRIu64 " MB %s in %.1f s", d->size >> 20, read ? "read" : "converted",
            clock_now() - begin);
    if (!read && d->dir && (rc = write_int4_file(d)) && rc != -ECANCELED)
        log_say(LOG_INFO, "the INT4 draft is not saved in %s: %s", d->dir, strerror(-rc));
    return NULL;
}

int int4_fits(uint64_t size, uint64_t weights, uint64_t have, struct error *e) {
    if (!have || (size <= have && weights <= have - size)) return 0;
    return error_set(e, ERR_MEMORY,
                     "draft int4 needs %" PRIu64 " MB for its experts beside %" PRIu64 " MB of weights, %" PRIu64
                     " MB are free (--draft; --force overrides)",
                     size >> 20, weights >> 20, have >> 20);
}

int int4_open(struct int4 **out, const struct weights *w, enum cpu_level level, const char *dir, bool force,
              struct error *e) {
    const struct config *c = &w->config;
    struct int4 *d;
    int moe = 0, rc = 0;
    *out = NULL;
    for (int l = 0; l < c->n_layers; l++) moe += ffns_of(w, l) != NULL;
    if (!(d = mem_calloc(1, sizeof *d))) return error_set(e, ERR_MEMORY, "no memory for an INT4 draft");
    *out = d;
    cond_init(&d->changed);
    pthread_mutex_init(&d->lock, NULL);
    d->w = w;
    for (int l = 0; l < c->n_layers; l++) {
        const uint64_t bytes = ffns_of(w, l) ? expert_bytes(ffns_of(w, l)) : 0;
        if (bytes > d->expert_bytes) d->expert_bytes = bytes;
    }
    d->layer_bytes = d->expert_bytes * (uint64_t)n_ffns(w);
    d->size = d->layer_bytes * (uint64_t)moe;
    uint64_t weights = weights_needed_bytes(w), have = mem_available();
    /* then experts are read on demand */
    if (have && weights > have) weights = w->bytes_dense + (uint64_t)moe * (uint64_t)c->topk * weights_expert_bytes(w);
    if (!force) rc = int4_fits(d->size, weights, have, e);
    kernels_fill(&d->k, level);
    if (dir && !rc && !(d->dir = mem_strdup(dir))) rc = error_set(e, ERR_MEMORY, "no memory for an INT4 draft");
    d->sums = mem_calloc((size_t)c->n_layers, sizeof *d->sums);
    d->experts = mem_calloc((size_t)c->n_layers, sizeof *d->experts);
    for (int l = 0; l < c->n_layers && d->experts && !rc; l++)
        if (ffns_of(w, l) && !(d->experts[l] = mem_calloc((size_t)n_ffns(w), sizeof **d->experts)))
            rc = error_set(e, ERR_MEMORY, "no memory for an INT4 draft");
    if (!rc && (!d->sums || !d->experts)) rc = error_set(e, ERR_MEMORY, "no memory for an INT4 draft");
    const int failed = rc ? 0 : pthread_create(&d->thread, NULL, int4_thread, d);
    if (failed) rc = error_set(e, ERR_RUNTIME, "cannot start the INT4 draft thread: %s", error_reason(failed));
    d->started = !rc;
    if (rc) int4_close(out);
    return rc;
}

void int4_close(struct int4 **dp) {
    struct int4 *d = *dp;
    if (!d) return;
    *dp = NULL;
    set_flag(d, &d->stop, true);
    if (d->started) pthread_join(d->thread, NULL);
    for (int l = 0; l < d->w->config.n_layers && d->experts; l++) mem_free(d->experts[l]);
    if (d->owns_pages) mem_pages_free(d->data, d->size);
    file_unmap(&d->map);
    mem_free(d->experts);
    mem_free(d->sums);
    mem_free(d->dir);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

bool int4_ready(const struct int4 *d) { return atomic_load(&d->ready); }
struct expert *const *int4_experts(const struct int4 *d) {
    return d->experts;
}
uint64_t int4_bytes(const struct int4 *d) { return d->size; }
uint64_t int4_expert_bytes(const struct int4 *d) { return d->expert_bytes; }
