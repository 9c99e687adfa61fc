/* Parses --gpus LIST: a list of cards or emu:N, then options. An unknown part is an error that names it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu_level.h"
#include "gpu/spec.h"

struct option_text {
    const char *text;
    int len;
};
static bool text_equals(struct option_text p, const char *s) {
    return (int)strlen(s) == p.len && !strncmp(p.text, s, (size_t)p.len);
}

/* A positive number; with `units`, an optional suffix K, M, G or T (powers of 1024). */
static int parse_number(struct option_text p, bool units, double *out) {
    char text[32], *end;
    if (p.len < 1 || p.len >= (int)sizeof text) return -1;
    memcpy(text, p.text, (size_t)p.len);
    text[p.len] = 0;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || errno || !(v > 0) || !isfinite(v)) return -1;
    if (units && *end) {
        const char *u = strchr("KMGT", *end);
        if (!u) return -1;
        for (int i = (int)(u - "KMGT"); i >= 0; i--) v *= 1024;
        end++;
    }
    if (*end) return -1;
    *out = v;
    return 0;
}
static int parse_integer(struct option_text p, long min, long max, long *out) {
    double v;
    if (p.len == 1 && p.text[0] == '0' && min <= 0) return *out = 0, 0;
    if (parse_number(p, false, &v) || v != floor(v) || v < (double)min || v > (double)max) return -1;
    *out = (long)v;
    return 0;
}

/* kind:N or kind:N@RANK */
static int parse_fault(struct gpu_spec *s, struct option_text v) {
    static const char *const names[] = {"none", "alloc", "copy", "launch", "die"};
    const char *colon = memchr(v.text, ':', (size_t)v.len);
    if (!colon) return -1;
    struct option_text kind = {v.text, (int)(colon - v.text)}, at = {colon + 1, v.len - kind.len - 1};
    const char *rank = memchr(at.text, '@', (size_t)at.len);
    long n = 0;
    if (rank) {
        struct option_text r = {rank + 1, at.len - (int)(rank - at.text) - 1};
        at.len = (int)(rank - at.text);
        if (parse_integer(r, 0, GPU_MAX - 1, &n)) return -1;
        s->fail_rank = (int)n;
    }
    for (int k = GPU_FAULT_ALLOC; k <= GPU_FAULT_DIE; k++)
        if (text_equals(kind, names[k]))
            return s->fail = (enum gpu_fault)k, parse_integer(at, 1, 1L << 40, &s->fail_at);
    return -1;
}

static int parse_option(struct gpu_spec *s, struct option_text key, struct option_text v) {
    static const struct {
        const char *name;
        size_t at;
        double unit;
    } rates[] = {
        {"h2d", offsetof(struct gpu_spec, h2d), 1e9},        {"d2h", offsetof(struct gpu_spec, d2h), 1e9},
        {"peer", offsetof(struct gpu_spec, peer), 1e9},      {"flops", offsetof(struct gpu_spec, flops), 1e12},
        {"attn", offsetof(struct gpu_spec, attn), 1e12},     {"bw", offsetof(struct gpu_spec, bw), 1e9},
        {"launch", offsetof(struct gpu_spec, launch), 1e-6},
    };
    double x;
    long n;
    if (text_equals(key, "mem") && v.text) return parse_number(v, true, &x) || x > 1e15 ? -1 : (s->mem = (size_t)x, 0);
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++)
        if (v.text && text_equals(key, rates[i].name)) {
            if (i > 2 && !s->is_emulated) return -1;
            if (parse_number(v, false, &x)) return -1;
            *(double *)((char *)s + rates[i].at) = x * rates[i].unit;
            return 0;
        }
    if (text_equals(key, "nopeer") && !v.text) return s->nopeer = true, 0;
    if (text_equals(key, "nograph") && !v.text) return s->nograph = true, 0;
    if (text_equals(key, "nojoin") && !v.text) return s->nojoin = true, 0;
    if (text_equals(key, "noepilogue") && !v.text) return s->noepilogue = true, 0;
    if (text_equals(key, "ring") && v.text)
        return parse_integer(v, 2, 1 << 20, &n) ? -1 : (s->slp_ring_slots = (int)n, 0);
    if (text_equals(key, "chunk") && v.text)
        return parse_integer(v, 1, 1 << 20, &n) ? -1 : (s->slp_chunk_rows = (int)n, 0);
    static const char *const maths[] = {"bf16", "f32", "fp8"}, *const gemms[] = {"auto", "own", "cublas"},
                             *const ways[] = {"auto", "layers", "tensor"};
    for (int i = 0; i < 3 && v.text; i++) {
        if (text_equals(key, "math") && text_equals(v, maths[i]))
            return s->math = (enum gpu_math)i, s->has_math = true, 0;
        if (text_equals(key, "parallel") && text_equals(v, ways[i])) return s->parallel = (enum gpu_parallel)i, 0;
        if (!s->is_emulated && text_equals(key, "gemm") && text_equals(v, gemms[i]))
            return s->gemm = (enum gpu_gemm)i, 0;
    }
    if (!s->is_emulated) return -1;
    if (text_equals(key, "nopin") && !v.text) return s->nopin = true, 0;
    if (text_equals(key, "nomap") && !v.text) return s->nomap = true, 0;
    if (text_equals(key, "piece") && v.text)
        return parse_number(v, true, &x) || x < 4096 || x > GPU_REGISTER_CHUNK || ((size_t)x & ((size_t)x - 1))
                   ? -1
                   : (s->register_chunk = (size_t)x, 0);
    if (text_equals(key, "virtual") && !v.text) return s->is_virtual = true, 0;
    if (text_equals(key, "threads") && v.text) return parse_integer(v, 1, 1024, &n) ? -1 : (s->threads = (int)n, 0);
    if (text_equals(key, "fail")) return v.text ? parse_fault(s, v) : -1;
    if (text_equals(key, "cpu"))
        for (int i = 0; i < CPU_LEVELS; i++)
            if (v.text && text_equals(v, cpu_level_name((enum cpu_level)i))) return s->level = i + 1, 0;
    return -1;
}

int gpu_spec_parse(struct gpu_spec *s, const char *list, struct error *e) {
    *s = (struct gpu_spec){0};
    if (!list || !*list || !strcmp(list, "none")) return 0;
    bool first = true, options = false;
    for (const char *p = list;; first = false) {
        const char *end = strchr(p, ',');
        struct option_text part = {p, end ? (int)(end - p) : (int)strlen(p)};
        const char *eq = memchr(part.text, '=', (size_t)part.len);
        long n = 0;
        int bad = 0;
        if (first && part.len >= 3 && !strncmp(part.text, "emu", 3)) {
            struct option_text count = {part.text + 4, part.len - 4};
            s->is_emulated = true;
            s->math = GPU_MATH_F32;
            s->n = 1;
            if (part.len > 3) {
                bad = part.text[3] != ':' || parse_integer(count, 1, GPU_MAX, &n);
                s->n = (int)n;
            }
            for (int i = 0; i < s->n; i++) s->id[i] = i;
        } else if (!s->is_emulated && !options && !eq && !parse_integer(part, 0, 1023, &n)) {
            if (s->n == GPU_MAX) return error_set(e, ERR_USAGE, "--gpus %s: at most %d devices", list, GPU_MAX);
            s->id[s->n++] = (int)n;
        } else if (!first) {
            struct option_text key = {part.text, eq ? (int)(eq - part.text) : part.len};
            struct option_text value = {eq ? eq + 1 : NULL, eq ? part.len - key.len - 1 : 0};
            options = true;
            bad = parse_option(s, key, value);
        } else {
            bad = -1;
        }
        if (bad)
            return error_set(e, ERR_USAGE, "--gpus %s: unknown '%.*s'; try none, 0, 0,1, or emu:2,mem=32G,h2d=57", list,
                             part.len, part.text);
        if (!end) break;
        p = end + 1;
    }
    if (s->is_emulated && !s->is_virtual && s->math == GPU_MATH_FP8)
        return error_set(e, ERR_USAGE, "--gpus %s: emulated devices compute in bf16 or f32", list);
    if (s->fail && s->fail_rank >= s->n)
        return error_set(e, ERR_USAGE, "--gpus %s: rank %d of fail= does not exist", list, s->fail_rank);
    return 0;
}
