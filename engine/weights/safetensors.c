#include "engine/weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"

/* Format: 8 bytes little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, then the data. Offsets count from the end of the header and
 * cover the rest of the file exactly, without holes or overlap. */

static const size_t max_header = 100u << 20;

struct span {
    uint64_t begin, end;
    uint32_t member;
};
static int by_begin(const void *a, const void *b) {
    const struct span *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int dtype_of(const struct json *j) {
    static const uint8_t known[] = {DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E8M0, DT_I8, DT_U8, DT_I16, DT_I32, DT_I64, DT_BOOL, DT_F64, DT_E5M2};
    for (size_t i = 0; i < sizeof known; i++)
        if (json_is(j, dtype_name(known[i]))) return known[i];
    return DT_NONE;
}

int safetensors_parse(const uint8_t *data, size_t size, const char *what, safetensors_fn fn, void *ctx, struct error *e) {
    int rc = file_check_placeholder(data, size, what, e);
    if (rc) return rc;
    if (size < 8) return error_set(e, ERR_MODEL, "%s: %zu bytes; a safetensors file has at least 8: the download is incomplete", what, size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | data[i];
    if (n > max_header)
        return error_set(e, ERR_MODEL, "%s: header of %llu bytes; at most %zu are valid: not a safetensors file", what, (unsigned long long)n, max_header);
    if (n > size - 8)
        return error_set(e, ERR_MODEL, "%s: header of %llu bytes in a file of %zu: the download is incomplete", what, (unsigned long long)n, size);
    struct arena a = {0};
    struct json root;
    struct span *spans = NULL;
    uint64_t room = size - 8 - n;
    rc = json_parse(&a, (const char *)data + 8, n, JSON_UNIQUE, what, &root, e);
    if (rc) {
        error_prefix(e, "safetensors header");
        goto out;
    }
    if (root.type != JSON_OBJECT) {
        rc = error_set(e, ERR_MODEL, "%s: the safetensors header is not an object", what);
        goto out;
    }
    if (!(spans = mem_alloc((root.n + 1) * sizeof *spans))) {
        rc = error_set(e, ERR_MEMORY, "%s: no memory for %u tensors", what, root.n);
        goto out;
    }
    uint32_t n_spans = 0;
    for (uint32_t i = 0; i < root.n; i++) {
        const struct json *k = &root.items[2 * i], *v = k + 1;
        if (json_is(k, "__metadata__")) continue;
        int kn = (int)(k->n < 200 ? k->n : 200);
        if (memchr(k->string, 0, k->n) || !k->n) {
            rc = error_set(e, ERR_MODEL, "%s: a tensor name is empty or holds a NUL byte", what);
            goto out;
        }
        const struct json *type = json_get(v, "dtype"), *shape = json_get(v, "shape"), *off = json_get(v, "data_offsets");
        struct tensor t = {.dtype = (uint8_t)dtype_of(type)};
        if (!t.dtype) {
            if (type && type->type == JSON_STRING)
                rc = error_set(e, ERR_MODEL, "%s: tensor %.*s has the unknown dtype '%.*s'", what, kn, k->string, (int)(type->n < 40 ? type->n : 40),
                               type->string);
            else rc = error_set(e, ERR_MODEL, "%s: tensor %.*s has no dtype", what, kn, k->string);
            goto out;
        }
        if (!shape || shape->type != JSON_ARRAY || shape->n > 6) {
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s has no shape, or one of more than 6 dimensions", what, kn, k->string);
            goto out;
        }
        uint64_t count = 1;
        for (uint32_t d = 0; d < shape->n; d++) {
            int64_t s = json_int(json_at(shape, d), -1);
            if (s < 0 || __builtin_mul_overflow(count, (uint64_t)s, &count) || count > (uint64_t)INT64_MAX / 8) {
                rc =
                    error_set(e, ERR_MODEL, "%s: tensor %.*s: dimension %u of its shape (%lld) is negative or overflows", what, kn, k->string, d, (long long)s);
                goto out;
            }
            t.shape[d] = s;
        }
        t.ndim = (uint8_t)shape->n;
        int64_t begin = json_int(json_at(off, 0), -1), end = json_int(json_at(off, 1), -1);
        if (!off || off->type != JSON_ARRAY || off->n != 2 || begin < 0 || end < 0) {
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s: data_offsets are not two numbers", what, kn, k->string);
            goto out;
        }
        if (begin > end) {
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s: data_offsets [%lld, %lld] are reversed", what, kn, k->string, (long long)begin, (long long)end);
            goto out;
        }
        if ((uint64_t)end > room) {
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s ends at byte %lld of %llu: the file is truncated", what, kn, k->string, (long long)end,
                           (unsigned long long)room);
            goto out;
        }
        t.size = (size_t)(end - begin);
        if (t.size != dtype_bytes(t.dtype, count)) {
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s: %zu bytes, its shape needs %zu", what, kn, k->string, t.size, dtype_bytes(t.dtype, count));
            goto out;
        }
        spans[n_spans++] = (struct span){(uint64_t)begin, (uint64_t)end, i};
        t.data = data + 8 + n + begin;
        char *name = arena_strndup(&a, k->string, k->n);
        if (!name) {
            rc = error_set(e, ERR_MEMORY, "%s: no memory for its tensor names", what);
            goto out;
        }
        t.name = name;
        if ((rc = fn(ctx, &t))) goto out;
    }
    qsort(spans, n_spans, sizeof *spans, by_begin);
    uint64_t at = 0;
    for (uint32_t i = 0; i < n_spans; i++) {
        const struct json *k = &root.items[2 * spans[i].member];
        if (spans[i].begin != at) {
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s begins at byte %llu, the one before ends at %llu: %s", what, (int)(k->n < 200 ? k->n : 200),
                           k->string, (unsigned long long)spans[i].begin, (unsigned long long)at, spans[i].begin < at ? "they overlap" : "there is a hole");
            goto out;
        }
        at = spans[i].end;
    }
    if (at != room)
        rc =
            error_set(e, ERR_MODEL, "%s: %llu bytes follow the last tensor, which ends at %llu", what, (unsigned long long)(room - at), (unsigned long long)at);
out:
    mem_free(spans);
    arena_free(&a);
    return rc;
}

int safetensors_index(const char *text, size_t n, const char *what, index_fn fn, void *ctx, struct error *e) {
    struct arena a = {0};
    struct json root;
    int rc = file_check_placeholder((const uint8_t *)text, n, what, e);
    if (!rc) rc = json_parse(&a, text, n, JSON_UNIQUE, what, &root, e);
    const struct json *map = rc ? NULL : json_get(&root, "weight_map");
    if (!rc && (!map || map->type != JSON_OBJECT || !map->n)) rc = error_set(e, ERR_MODEL, "%s: 'weight_map' is missing or empty", what);
    for (uint32_t i = 0; !rc && i < map->n; i++) {
        const struct json *k = &map->items[2 * i], *v = k + 1;
        int kn = (int)(k->n < 160 ? k->n : 160);
        if (v->type != JSON_STRING || !v->n || v->n > 200) rc = error_set(e, ERR_MODEL, "%s: tensor %.*s has no file name", what, kn, k->string);
        else if (memchr(v->string, '/', v->n) || memchr(v->string, '\\', v->n) || memchr(v->string, 0, v->n) || v->string[0] == '.')
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s: the file name '%.*s' leads out of the directory", what, kn, k->string, (int)v->n, v->string);
        else rc = fn(ctx, k->string, k->n, v->string, v->n);
    }
    arena_free(&a);
    return rc;
}
