#include "engine/placement/calibrate_cache.h"

#include <cpuid.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/numa.h"
#include "gpu/gpu.h"

/* Counts the changes of what is measured: a file of another number is measured again. */
#define MEASURES "2"

void calibrate_cpu_brand(char out[49]) {
    unsigned r[12] = {0}, most = __get_cpuid_max(0x80000000u, NULL);
    for (unsigned i = 0; i < 3 && most >= 0x80000004u; i++)
        __get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
    memcpy(out, r, 48);
    out[48] = 0;
    for (size_t n = strlen(out); n && out[n - 1] == ' ';) out[--n] = 0;
    if (!*out) snprintf(out, 49, "CPU");
}
void calibrate_fingerprint(const struct calibrate_options *o, char *out) {
    struct buf b = {0};
    char text[512];
    calibrate_cpu_brand(text);
    buf_fmt(&b, "hearth " HEARTH_VERSION " " MEASURES "\n%s\n%s\n%s %d %d\n%s\n", text, cpu_describe(),
            o->cpu->ops->name, o->threads, o->small_pages, o->gpus ? o->gpus : "");
    for (int a = 0; o->nodes && o->nodes->n_nodes > 1 && a < o->nodes->n_nodes; a++)
        buf_fmt(&b, "%d %zu\n", o->nodes->cpus[a], o->nodes->memory[a]);
    if (o->n_gpus) {
        gpu_describe(text, sizeof text);
        buf_fmt(&b, "%s\n", text);
    }
    for (int i = 0; i < o->n_gpus; i++) {
        const struct gpu_info *f = gpu_info(o->gpu[i]);
        buf_fmt(&b, "%s %s %d %zu %g %g %g %d\n", f->backend, f->name, f->id, f->mem, f->h2d, f->d2h, f->link,
                f->is_virtual);
    }
    snprintf(out, CALIBRATE_FINGERPRINT_LEN, "%016llx%016llx", (unsigned long long)hash64(b.data, b.len, 1),
             (unsigned long long)hash64(b.data, b.len, 2));
    if (b.failed) *out = 0; /* no fingerprint: neither read nor write the cache */
    buf_free(&b);
}

bool calibrate_read_cached(struct cost_machine *out, const char *path, const char *print) {
    char *text, was[CALIBRATE_FINGERPRINT_LEN];
    size_t n;
    struct error e = {0};
    if (!*print || !file_exists(path)) return false;
    int rc = file_read(path, 1 << 20, &text, &n, &e);
    if (rc) {
        log_say(LOG_INFO, "%s; measuring again", e.text);
        return false;
    }
    rc = calibrate_parse(out, text, n, path, was, &e);
    mem_free(text);
    if (rc) log_say(LOG_INFO, "%s; measuring again", e.text);
    else if (strcmp(was, print)) log_say(LOG_INFO, "%s does not match this machine; measuring again", path);
    return !rc && !strcmp(was, print);
}
void calibrate_write_cached(const struct cost_machine *m, const char *path, const char *print) {
    struct buf b = {0};
    struct error e = {0};
    if (*print && !calibrate_write(m, print, &b) && file_write(path, b.data, b.len, &e))
        log_say(LOG_INFO, "calibration results are not saved: %s", e.text);
    buf_free(&b);
}
