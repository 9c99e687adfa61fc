#include "base/gguf_file.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/gguf_ollama.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "base/utf8.h"

enum { MAX_KEYS = 4096, MAX_ITEMS = 1 << 24, MAX_DEPTH = 4, MAX_NAME = 512, MAX_ALIGNMENT = 1 << 20 };

struct reader {
    const uint8_t *data;
    size_t size, at;
    struct arena *arena;
    size_t items; /* items of all arrays */
    const char *what;
    const struct json *key; /* the key being read; NULL: none yet */
    struct error *e;
};

static int shown(const struct json *s) { return (int)(s->n < 100 ? s->n : 100); }

static int bad(struct reader *r, const char *why) {
    if (!r->key) return error_set(r->e, ERR_MODEL, "%s: %s", r->what, why);
    return error_set(r->e, ERR_MODEL, "%s: metadata '%.*s': %s", r->what, shown(r->key), r->key->string, why);
}
static int no_memory(struct reader *r) {
    return error_set(r->e, ERR_MEMORY, "%s: no memory for its metadata", r->what);
}
static int cut(struct reader *r) { return bad(r, "the file ends in the middle of it: the download is incomplete"); }

/* --- Numbers and strings ---------------------------------------------------------------------- */

static int read_value(struct reader *r, void *to, size_t n) {
    if (n > r->size - r->at) return cut(r);
    memcpy(to, r->data + r->at, n); /* both are little-endian */
    r->at += n;
    return 0;
}

static int take_string(struct reader *r, struct json *out) {
    uint64_t n = 0;
    int rc = read_value(r, &n, sizeof n);
    if (rc) return rc;
    if (n > r->size - r->at) return cut(r);
    if (n > UINT32_MAX) return bad(r, "a string of more than 4 GB");
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = (const char *)r->data + r->at};
    r->at += n;
    return utf8_valid(out->string, n) == n ? 0 : bad(r, "a string that is not UTF-8");
}

enum value_type {
    V_U8,
    V_I8,
    V_U16,
    V_I16,
    V_U32,
    V_I32,
    V_F32,
    V_BOOL,
    V_STRING,
    V_ARRAY,
    V_U64,
    V_I64,
    V_F64,
    V_COUNT
};
static const uint8_t value_bytes[V_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8}; /* minimum size */

static int take_number(struct reader *r, uint32_t type, struct json *out) {
    uint8_t raw[8] = {0};
    uint64_t u;
    double d;
    int rc = read_value(r, raw, value_bytes[type]);
    if (rc) return rc;
    memcpy(&u, raw, sizeof u);
    *out = (struct json){.type = JSON_INT};
    switch (type) {
    case V_I8: out->integer = (int8_t)u; break;
    case V_I16: out->integer = (int16_t)u; break;
    case V_I32: out->integer = (int32_t)u; break;
    case V_F32: *out = (struct json){.type = JSON_FLOAT, .number = (double)f32_of_bits((uint32_t)u)}; break;
    case V_F64:
        memcpy(&d, raw, sizeof d);
        *out = (struct json){.type = JSON_FLOAT, .number = d};
        break;
    case V_BOOL:
        if (u > 1) return bad(r, "a truth value that is neither 0 nor 1");
        *out = (struct json){.type = JSON_BOOL, .boolean = u != 0};
        break;
    default:
        if (u > INT64_MAX) *out = (struct json){.type = JSON_FLOAT, .number = (double)u};
        else out->integer = (int64_t)u;
    }
    return 0;
}

static int take_value(struct reader *r, uint32_t type, int depth, struct json *out);

static int take_array(struct reader *r, int depth, struct json *out) {
    uint32_t type = 0;
    uint64_t n = 0;
    int rc;
    if ((rc = read_value(r, &type, sizeof type)) || (rc = read_value(r, &n, sizeof n))) return rc;
    if (type >= V_COUNT) return bad(r, "an array of an unknown type");
    if (depth >= MAX_DEPTH) return bad(r, "arrays in arrays, too deep");
    if (n > (r->size - r->at) / value_bytes[type]) return cut(r);
    if (n > MAX_ITEMS - r->items) return bad(r, "too many items in arrays");
    r->items += n;
    struct json *items = arena_alloc(r->arena, n * sizeof *items);
    if (!items) return no_memory(r);
    *out = (struct json){.type = JSON_ARRAY, .n = (uint32_t)n, .items = items};
    for (uint64_t i = 0; i < n && !rc; i++) rc = take_value(r, type, depth + 1, &items[i]);
    return rc;
}

static int take_value(struct reader *r, uint32_t type, int depth, struct json *out) {
    if (type >= V_COUNT) return bad(r, "a value of an unknown type");
    if (type == V_STRING) return take_string(r, out);
    return type == V_ARRAY ? take_array(r, depth, out) : take_number(r, type, out);
}

/* --- Header ----------------------------------------------------------------------------------- */

static int read_header(struct reader *r, uint64_t *n_tensors, uint64_t *n_keys) {
    uint32_t version;
    if (r->size < 24) return bad(r, "shorter than the head of a GGUF file: the download is incomplete");
    if (memcmp(r->data, "GGUF", 4)) return bad(r, "does not begin as a GGUF file does");
    memcpy(&version, r->data + 4, sizeof version);
    if (version && !(version & 0xffff)) return bad(r, "a big-endian GGUF file; hearth reads little-endian ones");
    if (version != 2 && version != 3) /* little-endian files of both are the same */
        return error_set(r->e, ERR_MODEL, "%s: GGUF version %u; hearth reads versions 2 and 3", r->what, version);
    memcpy(n_tensors, r->data + 8, 8);
    memcpy(n_keys, r->data + 16, 8);
    r->at = 24;
    return 0;
}

static int take_meta(struct reader *r, uint64_t n, struct json *out) {
    if (n > MAX_KEYS)
        return error_set(r->e, ERR_MODEL, "%s: %llu metadata keys; at most %d are valid", r->what,
                         (unsigned long long)n, MAX_KEYS);
    struct json *items = arena_alloc(r->arena, 2 * n * sizeof *items);
    if (!items) return no_memory(r);
    for (uint64_t i = 0; i < n; i++) {
        struct json *k = &items[2 * i];
        uint32_t type = 0;
        int rc;
        r->key = NULL;
        if ((rc = take_string(r, k))) return rc;
        r->key = k;
        if (!k->n || k->n > MAX_NAME || memchr(k->string, 0, k->n)) return bad(r, "not a name for a key");
        for (uint64_t o = 0; o < i; o++)
            if (items[2 * o].n == k->n && !memcmp(items[2 * o].string, k->string, k->n))
                return bad(r, "stands there twice");
        if ((rc = read_value(r, &type, sizeof type)) || (rc = take_value(r, type, 0, k + 1))) return rc;
    }
    r->key = NULL;
    *out = (struct json){.type = JSON_OBJECT, .n = (uint32_t)n, .items = items};
    return 0;
}

/* --- Tensors ---------------------------------------------------------------------------------- */

static const uint8_t gguf_number[DT_COUNT] = {
#define X(name, file, block, bytes, number) [DT_##name] = number,
    DTYPES(X)
#undef X
};
/* Formats that hearth does not compute with. */
static const struct {
    const char *name;
    uint8_t number;
} unsupported[] = {{"Q8_1", 9},
                   {"Q8_K", 15},
                   {"I8", 24},
                   {"I16", 25},
                   {"I64", 27},
                   {"F64", 28},
                   /* ik_llama.cpp's */
                   {"Q6_0", 133},
                   {"IQ1_BN", 134},
                   {"IQ2_BN", 135},
                   {"IQ2_K", 137},
                   {"IQ3_K", 138},
                   {"IQ4_K", 139},
                   {"IQ5_K", 140},
                   {"IQ6_K", 141},
                   {"IQ2_KS", 145},
                   {"IQ4_KSS", 146},
                   {"IQ2_KT", 153},
                   {"IQ3_KT", 154},
                   {"IQ4_KT", 155},
                   {"IQ3_KS", 156},
                   {"IQ1_KT", 158}};

static enum dtype dtype_of_number(uint32_t number) { /* DT_NONE: none */
    for (int t = 0; t < DT_COUNT; t++)
        if (gguf_number[t] == number && number != NO_GGUF) return (enum dtype)t;
    return DT_NONE;
}

static int take_format(struct reader *r, struct gguf_tensor *t, uint32_t type) {
    char known[400] = "";
    if ((t->dtype = dtype_of_number(type))) return 0;
    for (uint32_t number = 0, at = 0; number < NO_GGUF; number++) {
        const enum dtype d = dtype_of_number(number);
        if (d && d != DT_I32)
            at += (uint32_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", dtype_name(d));
    }
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (unsupported[i].number == type)
            return error_set(r->e, ERR_MODEL,
                             "%s: tensor %.200s is stored as %s, which hearth does not compute with; it takes %s",
                             r->what, t->name, unsupported[i].name, known);
    return error_set(r->e, ERR_MODEL, "%s: tensor %.200s has the unknown format %u; hearth computes with %s", r->what,
                     t->name, type, known);
}

static int take_shape(struct reader *r, struct gguf_tensor *t) {
    uint32_t n = 0;
    uint64_t d[4] = {0}, count = 1;
    int rc = read_value(r, &n, sizeof n);
    if (rc) return rc;
    if (n < 1 || n > 4)
        return error_set(r->e, ERR_MODEL, "%s: tensor %.200s has %u dimensions; 1 to 4 are valid", r->what, t->name, n);
    if ((rc = read_value(r, d, n * sizeof *d))) return rc;
    for (uint32_t i = 0; i < n; i++) {
        if (!d[i] || __builtin_mul_overflow(count, d[i], &count) || count > (uint64_t)INT64_MAX / 8)
            return error_set(r->e, ERR_MODEL, "%s: tensor %.200s: dimension %u of its shape (%llu) is 0 or overflows",
                             r->what, t->name, i, (unsigned long long)d[i]);
        t->shape[n - 1 - i] = (int64_t)d[i];
    }
    t->ndim = (uint8_t)n;
    t->size = count;
    return 0;
}

static int take_tensor(struct reader *r, struct gguf_tensor *t) {
    struct json name;
    uint32_t type = 0;
    int rc = take_string(r, &name);
    if (rc) return rc;
    if (!name.n || name.n > MAX_NAME || memchr(name.string, 0, name.n))
        return bad(r, "a tensor name is empty, too long, or holds a NUL byte");
    if (!(t->name = arena_strndup(r->arena, name.string, name.n))) return no_memory(r);
    if ((rc = take_shape(r, t)) || (rc = read_value(r, &type, sizeof type)) ||
        (rc = read_value(r, &t->offset, sizeof t->offset)) || (rc = take_format(r, t, type)))
        return rc;
    uint64_t columns = (uint64_t)t->shape[t->ndim - 1];
    if (columns % dtype_block(t->dtype))
        return error_set(r->e, ERR_MODEL, "%s: tensor %.200s: rows of %llu numbers are no whole blocks of %s", r->what,
                         t->name, (unsigned long long)columns, dtype_name(t->dtype));
    t->size = t->size / columns * (dtype_row_head(t->dtype) + dtype_bytes(t->dtype, columns));
    return 0;
}

/* Tensors are stored in header order, each at a multiple of the alignment. */
static int assign_offsets(struct reader *r, struct gguf *g, uint64_t alignment) {
    uint64_t begin = align_up(r->at, alignment), room = r->size > begin ? r->size - begin : 0, at = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        if (t->offset != at)
            return error_set(r->e, ERR_MODEL,
                             "%s: tensor %.200s begins at byte %llu of the data; the one before it asks for %llu",
                             r->what, t->name, (unsigned long long)t->offset, (unsigned long long)at);
        if (t->size > room - at)
            return error_set(r->e, ERR_MODEL, "%s: tensor %.200s ends at byte %llu of %llu: the file is truncated",
                             r->what, t->name, (unsigned long long)(at + t->size), (unsigned long long)room);
        t->offset += begin;
        at = align_up(at + t->size, alignment);
        if (at > room) at = room; /* the last one may omit its padding */
    }
    if (room - at >= alignment) /* some tools append data of their own */
        log_say(LOG_INFO, "%s: %llu bytes follow the last tensor and are ignored", r->what,
                (unsigned long long)(room - at));
    return 0;
}

int gguf_parse(struct gguf *g, struct arena *a, const uint8_t *data, size_t size, const char *what, struct error *e) {
    struct reader r = {.data = data, .size = size, .arena = a, .what = what, .e = e};
    uint64_t n_tensors = 0, n_keys = 0;
    int rc = file_check_placeholder(data, size, what, e);
    *g = (struct gguf){0};
    if (rc || (rc = read_header(&r, &n_tensors, &n_keys)) || (rc = take_meta(&r, n_keys, &g->meta))) return rc;
    int64_t alignment =
        json_get(&g->meta, "general.alignment") ? json_int(json_get(&g->meta, "general.alignment"), 0) : 32;
    if (alignment < 8 || alignment > MAX_ALIGNMENT || alignment & (alignment - 1))
        return bad(&r, "'general.alignment' is no power of two from 8 on");
    if (n_tensors > (size - r.at) / 32) return cut(&r); /* minimum: empty name, one dimension, format, offset */
    if (!(g->tensors = arena_calloc(a, n_tensors, sizeof *g->tensors))) return no_memory(&r);
    for (; g->n_tensors < n_tensors; g->n_tensors++)
        if ((rc = take_tensor(&r, &g->tensors[g->n_tensors]))) return rc;
    if ((rc = assign_offsets(&r, g, (uint64_t)alignment))) return rc;
    return gguf_ollama_translate(g, a) ? no_memory(&r) : 0;
}

/* --- Files ------------------------------------------------------------------------------------ */

static bool ends_gguf(const char *s) {
    size_t n = strlen(s);
    return n > 5 && !strcmp(s + n - 5, ".gguf");
}

bool gguf_split(const char *name, int *number, int *count, size_t *stem) {
    size_t n = strlen(name), tail = strlen("-00001-of-00001.gguf");
    int end = 0;
    if (n <= tail) return false;
    const char *s = name + n - tail;
    for (size_t i = 0; i < tail; i++) {
        bool digit = (i >= 1 && i <= 5) || (i >= 10 && i <= 14);
        if (digit ? s[i] < '0' || s[i] > '9' : s[i] != "-00001-of-00001.gguf"[i]) return false;
    }
    *stem = n - tail;
    return sscanf(s, "-%5d-of-%5d.gguf%n", number, count, &end) == 2 && *number >= 1 && *number <= *count;
}

bool gguf_names_tower(const char *name) { return ends_gguf(name) && strcasestr(name, "mmproj"); }

int gguf_tower_rank(const char *name) {
    static const char *const formats[] = {"bf16", "f16", "q8_0"};
    int rank = 0;
    while (rank < 3 && !strcasestr(name, formats[rank])) rank++;
    return rank;
}

struct listing {
    char first[256], other[256]; /* models found */
};
static int on_file(void *ctx, const char *name) {
    struct listing *l = ctx;
    int number, count;
    size_t stem, n = strlen(name);
    if (!ends_gguf(name) || n >= sizeof l->first || gguf_names_tower(name)) return 0;
    if (gguf_split(name, &number, &count, &stem) && number > 1) return 0;
    char *to = l->first[0] ? l->other : l->first;
    memcpy(to, name, n + 1);
    if (l->other[0] && strcmp(l->other, l->first) < 0) { /* in alphabetical order */
        char t[256];
        memcpy(t, l->first, sizeof t);
        memcpy(l->first, l->other, sizeof t);
        memcpy(l->other, t, sizeof t);
    }
    return 0;
}

/* Whether a file is GGUF whatever its name: ollama names its files by their hashes. */
static bool begins_gguf(const char *path) {
    struct file_map map = {0};
    if (file_map(&map, path, NULL)) return false;
    const bool begins = map.size >= 4 && !memcmp(map.data, "GGUF", 4);
    file_unmap(&map);
    return begins;
}

int gguf_find(const char *path, char *file, size_t cap, struct error *e) {
    struct listing l = {{0}, {0}};
    if (!file_is_dir(path) && file_exists(path) && (ends_gguf(path) || begins_gguf(path))) {
        int n = snprintf(file, cap, "%s", path);
        return n > 0 && (size_t)n < cap ? 1 : error_set(e, ERR_USAGE, "%.200s: path too long", path);
    }
    if (!file_is_dir(path) || file_join(file, cap, path, "config.json", NULL) || file_exists(file)) return 0;
    if (file_list(path, on_file, &l, NULL) || !l.first[0]) return 0;
    if (l.other[0])
        return error_set(e, ERR_USAGE, "%s: holds %s and %s; name one of them (-m)", path, l.first, l.other);
    int rc = file_join(file, cap, path, l.first, e);
    return rc ? rc : 1;
}
