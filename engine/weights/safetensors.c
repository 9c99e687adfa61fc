#include "engine/weights/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mat.h"
#include "base/shard_names.h"

/* Format: 8 bytes little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, then the data.
 * Offsets count from the end of the header and cover the rest of the file exactly, without holes or overlap. */

static const size_t MAX_HEADER = 100u << 20; /* as in the format's reference implementation */
enum { LENGTH_BYTES = 8 };

/* Bytes of a tensor, counted from the end of the header. */
struct byte_range {
    uint64_t begin, end;
    uint32_t member; /* index of the tensor in the header's object */
};
static int by_begin(const void *a, const void *b) {
    const struct byte_range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* An element of the format: hearth's type, DT_NONE if it has none, and its bits in the file. */
struct element {
    uint8_t dtype, bits;
};
static bool find_element(const struct json *name, struct element *out) {
    static const uint8_t known[] = {DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E8M0, DT_I8,  DT_U8,
                                    DT_I16, DT_I32,  DT_I64, DT_BOOL, DT_F64,  DT_E5M2};
    /* F4: bytes of two codes, counted as codes. U32: words of packed codes */
    static const struct {
        const char *name;
        struct element is;
    } others[] = {{"U32", {DT_I32, 32}},         {"U16", {DT_I16, 16}},
                  {"U64", {DT_I64, 64}},         {"F4", {DT_U8, 4}},
                  {"F6_E2M3", {DT_NONE, 6}},     {"F6_E3M2", {DT_NONE, 6}},
                  {"F8_E4M3FNUZ", {DT_NONE, 8}}, {"F8_E5M2FNUZ", {DT_NONE, 8}},
                  {"C64", {DT_NONE, 64}}};
    for (size_t i = 0; i < sizeof known; i++)
        if (json_is(name, dtype_name(known[i])))
            return *out = (struct element){known[i], (uint8_t)(8 * dtype_bytes(known[i], 1))}, true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (json_is(name, others[i].name)) return *out = others[i].is, true;
    return false;
}

/* A name from the header in an error message; the first bytes of a long one. */
#define NAME_FORMAT  "%.*s"
#define NAME_ARGS(k) (int)((k)->n < 200 ? (k)->n : 200), (k)->string

/* Parses the shape of tensor k into t; *count, 1 before, receives its number of elements. */
static int parse_shape(const struct json *shape, const struct json *k, const char *what, struct tensor *t,
                       uint64_t *count, struct error *e) {
    if (!shape || shape->type != JSON_ARRAY || shape->n > sizeof t->shape / sizeof *t->shape)
        return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT " has no shape, or one of more than 6 dimensions",
                         what, NAME_ARGS(k));
    for (uint32_t d = 0; d < shape->n; d++) {
        const int64_t s = json_int(json_at(shape, d), -1);
        if (s < 0 || __builtin_mul_overflow(*count, (uint64_t)s, count) || *count > (uint64_t)INT64_MAX / 64)
            return error_set(e, ERR_MODEL,
                             "%s: tensor " NAME_FORMAT ": dimension %u of its shape (%lld) is negative or overflows",
                             what, NAME_ARGS(k), d, (long long)s);
        t->shape[d] = s;
    }
    t->ndim = (uint8_t)shape->n;
    return 0;
}

/* Parses the entry v of tensor k into t and *range. data_bytes: size of the file's data. */
static int parse_tensor(const struct json *k, const struct json *v, uint64_t data_bytes, const char *what,
                        struct tensor *t, struct byte_range *range, struct error *e) {
    const struct json *type = json_get(v, "dtype"), *off = json_get(v, "data_offsets");
    uint64_t count = 1;
    if (memchr(k->string, 0, k->n) || !k->n)
        return error_set(e, ERR_MODEL, "%s: a tensor name is empty or holds a NUL byte", what);
    struct element element = {0};
    const bool is_known = find_element(type, &element);
    *t = (struct tensor){.dtype = element.dtype};
    if (!is_known && type && type->type == JSON_STRING)
        return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT " has the unknown dtype '%.*s'", what, NAME_ARGS(k),
                         (int)(type->n < 40 ? type->n : 40), type->string);
    if (!is_known) return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT " has no dtype", what, NAME_ARGS(k));
    int rc = parse_shape(json_get(v, "shape"), k, what, t, &count, e);
    if (rc) return rc;
    const int64_t begin = json_int(json_at(off, 0), -1), end = json_int(json_at(off, 1), -1);
    if (!off || off->type != JSON_ARRAY || off->n != 2 || begin < 0 || end < 0)
        return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT ": data_offsets are not two numbers", what,
                         NAME_ARGS(k));
    if (begin > end)
        return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT ": data_offsets [%lld, %lld] are reversed", what,
                         NAME_ARGS(k), (long long)begin, (long long)end);
    if ((uint64_t)end > data_bytes)
        return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT " ends at byte %lld of %llu: the file is truncated",
                         what, NAME_ARGS(k), (long long)end, (unsigned long long)data_bytes);
    t->size = (size_t)(end - begin);
    const uint64_t bits = count * element.bits;
    if (bits % 8 || t->size != bits / 8)
        return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT ": %zu bytes, its shape needs %llu", what,
                         NAME_ARGS(k), t->size, (unsigned long long)(bits / 8));
    if (element.bits == 4 && t->ndim) { /* rows of whole bytes */
        if (t->shape[t->ndim - 1] % 2)
            return error_set(e, ERR_MODEL, "%s: tensor " NAME_FORMAT ": its rows have an odd number of 4-bit codes",
                             what, NAME_ARGS(k));
        t->shape[t->ndim - 1] /= 2;
    }
    range->begin = (uint64_t)begin, range->end = (uint64_t)end;
    return 0;
}

/* Checks that the n ranges cover the data without holes or overlap; sorts them. */
static int check_coverage(struct byte_range *ranges, uint32_t n, const struct json *root, uint64_t data_bytes,
                          const char *what, struct error *e) {
    uint64_t at = 0;
    qsort(ranges, n, sizeof *ranges, by_begin);
    for (uint32_t i = 0; i < n; i++) {
        const struct json *k = &root->items[2 * ranges[i].member];
        if (ranges[i].begin != at)
            return error_set(e, ERR_MODEL,
                             "%s: tensor " NAME_FORMAT " begins at byte %llu, the one before ends at %llu: %s", what,
                             NAME_ARGS(k), (unsigned long long)ranges[i].begin, (unsigned long long)at,
                             ranges[i].begin < at ? "they overlap" : "there is a hole");
        at = ranges[i].end;
    }
    if (at == data_bytes) return 0;
    return error_set(e, ERR_MODEL, "%s: %llu bytes follow the last tensor, which ends at %llu", what,
                     (unsigned long long)(data_bytes - at), (unsigned long long)at);
}

/* Reads the header's length into *n. */
static int read_length(const uint8_t *data, size_t size, const char *what, uint64_t *n, struct error *e) {
    int rc = file_check_placeholder(data, size, what, e);
    if (rc) return rc;
    if (size < LENGTH_BYTES)
        return error_set(e, ERR_MODEL, "%s: %zu bytes; a safetensors file has at least %d: the download is incomplete",
                         what, size, LENGTH_BYTES);
    *n = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) *n = *n << 8 | data[i];
    if (*n > MAX_HEADER)
        return error_set(e, ERR_MODEL, "%s: header of %llu bytes; at most %zu are valid: not a safetensors file", what,
                         (unsigned long long)*n, MAX_HEADER);
    if (*n > size - LENGTH_BYTES)
        return error_set(e, ERR_MODEL, "%s: header of %llu bytes in a file of %zu: the download is incomplete", what,
                         (unsigned long long)*n, size);
    return 0;
}

int safetensors_parse(const uint8_t *data, size_t size, const char *what, safetensors_fn fn, void *ctx, bool *is_mlx,
                      struct error *e) {
    uint64_t n = 0;
    int rc = read_length(data, size, what, &n, e);
    if (rc) return rc;
    const uint64_t data_bytes = size - LENGTH_BYTES - n;
    struct arena a = {0};
    struct json root;
    struct byte_range *ranges = NULL;
    uint32_t n_ranges = 0;
    rc = json_parse(&a, (const char *)data + LENGTH_BYTES, n, JSON_UNIQUE, what, &root, e);
    if (rc) {
        error_prefix(e, "safetensors header");
        goto out;
    }
    if (root.type != JSON_OBJECT) {
        rc = error_set(e, ERR_MODEL, "%s: the safetensors header is not an object", what);
        goto out;
    }
    if (!(ranges = mem_alloc((root.n + 1) * sizeof *ranges))) {
        rc = error_set(e, ERR_MEMORY, "%s: no memory for %u tensors", what, root.n);
        goto out;
    }
    for (uint32_t i = 0; i < root.n; i++) {
        const struct json *k = &root.items[2 * i];
        struct tensor t;
        if (json_is(k, "__metadata__")) {
            const struct json *format = k[1].type == JSON_OBJECT ? json_get(k + 1, "format") : NULL;
            if (is_mlx && format && json_is(format, "mlx")) *is_mlx = true;
            continue;
        }
        ranges[n_ranges].member = i;
        if ((rc = parse_tensor(k, k + 1, data_bytes, what, &t, &ranges[n_ranges], e))) goto out;
        t.data = data + LENGTH_BYTES + n + ranges[n_ranges++].begin;
        if (!(t.name = arena_strndup(&a, k->string, k->n))) {
            rc = error_set(e, ERR_MEMORY, "%s: no memory for its tensor names", what);
            goto out;
        }
        if ((rc = fn(ctx, &t))) goto out;
    }
    rc = check_coverage(ranges, n_ranges, &root, data_bytes, what, e);
out:
    mem_free(ranges);
    arena_free(&a);
    return rc;
}

int safetensors_index(const char *text, size_t n, const char *what, index_fn fn, void *ctx, struct error *e) {
    struct arena a = {0};
    struct json root;
    int rc = file_check_placeholder((const uint8_t *)text, n, what, e);
    if (!rc) rc = json_parse(&a, text, n, JSON_UNIQUE, what, &root, e);
    const struct json *map = rc ? NULL : json_get(&root, "weight_map");
    if (!rc && (!map || map->type != JSON_OBJECT || !map->n))
        rc = error_set(e, ERR_MODEL, "%s: 'weight_map' is missing or empty", what);
    for (uint32_t i = 0; !rc && i < map->n; i++) {
        const struct json *k = &map->items[2 * i], *v = k + 1;
        int kn = (int)(k->n < 160 ? k->n : 160);
        const char *path;
        size_t path_bytes;
        if (v->type != JSON_STRING || !v->n || v->n > 200)
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s has no file name", what, kn, k->string);
        else if (!(path = shard_names_path(v->string, v->n, &path_bytes)))
            rc = error_set(e, ERR_MODEL, "%s: tensor %.*s: the file name '%.*s' leads out of the directory", what, kn,
                           k->string, (int)v->n, v->string);
        else rc = fn(ctx, k->string, k->n, path, path_bytes);
    }
    arena_free(&a);
    return rc;
}
