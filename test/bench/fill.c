/* Writes the random checkpoint whose headers mkmodel.py --headers has written, on a machine without Python: one process
 * a shard, WRITERS for a GGUF file. bench_fill FROM TO FROM: config.json and the like, which are copied, and a
 * NAME.header for each safetensors or GGUF file NAME. Values are as mkmodel.py describes them: FP8 codes of a normal
 * distribution, scales that keep the size of activations, small BF16 and float32 numbers, norms of one, random blocks.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/gguf_file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/minifloat.h"

enum { POOL = 32 << 20, PIECE = 8 << 20, WRITERS = 8 };
static const double code_std = 150; /* codes reach 448 at three standard deviations */

enum kind { CODES, HALVES, FLOATS, KINDS };
static uint8_t *pool[KINDS];
static uint64_t seed = 1;

static uint64_t random_bits(void) { /* splitmix64 */
    uint64_t z = seed += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static double random_unit(void) { return (double)(random_bits() >> 11) * 0x1p-53; }
static void die(const char *what, const char *why) {
    fprintf(stderr, "bench_fill: %s: %s\n", what, why);
    exit(1);
}

/* The E4M3 code nearest to the value of that rank, 0 to 255, among equally likely values of the distribution. */
static uint8_t code_of_rank(int rank) {
    const double want = (rank + 0.5) / 256;
    double low = -5, high = 5;
    for (int i = 0; i < 60; i++) {
        const double z = (low + high) / 2;
        if (0.5 * erfc(-z / sqrt(2)) < want) low = z;
        else high = z;
    }
    int best = 0;
    for (int c = 0; c < 0x7f; c++)
        if (fabs(fabs(low) * code_std - (double)e4m3_to_f32((uint8_t)c)) <
            fabs(fabs(low) * code_std - (double)e4m3_to_f32((uint8_t)best)))
            best = c;
    return (uint8_t)(best | (low < 0 ? 0x80 : 0));
}
static void fill_pools(void) {
    uint8_t code[256];
    for (int i = 0; i < 256; i++) code[i] = code_of_rank(i);
    for (int k = 0; k < KINDS; k++)
        if (!(pool[k] = malloc(POOL))) die("pool", "no memory");
    for (size_t at = 0; at < POOL; at += 8) {
        const uint64_t r = random_bits(), sign = r & 0x8080808080808080ull;
        memcpy(pool[HALVES] + at,
               &(uint64_t){(r & 0x00ff00ff00ff00ffull) | (sign & 0x8000800080008000ull) | 0x3c003c003c003c00ull}, 8);
        memcpy(pool[FLOATS] + at,
               &(uint64_t){(r & 0x00ffffff00ffffffull) | (sign & 0x8000000080000000ull) | 0x3c0000003c000000ull}, 8);
        for (int i = 0; i < 8; i++) pool[CODES][at + (size_t)i] = code[r >> 8 * i & 255];
    }
}

static void put(FILE *f, const void *p, size_t n, const char *name) {
    if (fwrite(p, 1, n, f) != n) die(name, "cannot be written");
}
static void put_random(FILE *f, enum kind k, size_t bytes, const char *name) {
    for (size_t n; bytes; bytes -= n) {
        n = bytes < PIECE ? bytes : PIECE;
        put(f, pool[k] + random_bits() % ((POOL - PIECE) / 64) * 64, n, name);
    }
}
/* The same number, with noise of a fifth, or exact. BF16 are the upper halves of float32. */
static void put_numbers(FILE *f, double value, double noise, bool is_bf16, size_t bytes, const char *name) {
    const size_t size = is_bf16 ? 2 : 4;
    for (size_t at = 0; at < bytes; at += size) {
        const float v = (float)(value * (1 + noise * (random_unit() - 0.5)));
        uint32_t bits;
        memcpy(&bits, &v, 4);
        put(f, (char *)&bits + 4 - size, size, name);
    }
}

static bool ends_with(const struct json *s, const char *end) {
    const size_t n = strlen(end);
    return s->n >= n && !memcmp(s->string + s->n - n, end, n);
}
/* The columns of the matrix that a scale belongs to: its name without _scale or _scale_inv. */
static int64_t columns_of(const struct json *root, const struct json *scale) {
    for (uint32_t i = 0; i < root->n; i++) {
        const struct json *key = &root->items[2 * i];
        if (key->n < scale->n && !memcmp(key->string, scale->string, key->n) &&
            !memcmp(scale->string + key->n, "_scale", 6))
            return json_int(json_at(json_get(&root->items[2 * i + 1], "shape"), 1), 1);
    }
    return 1;
}
static void put_tensor(FILE *f, const struct json *root, uint32_t i, const char *file) {
    const struct json *name = &root->items[2 * i], *t = &root->items[2 * i + 1], *type = json_get(t, "dtype"),
                      *shape = json_get(t, "shape");
    const struct json *place = json_get(t, "data_offsets");
    const bool is_bf16 = json_is(type, "BF16"), is_scale = ends_with(name, "_scale_inv") || ends_with(name, "_scale");
    const size_t bytes = (size_t)(json_int(json_at(place, 1), 0) - json_int(json_at(place, 0), 0));
    if (json_is(type, "F8_E4M3")) put_random(f, CODES, bytes, file);
    else if (is_scale) put_numbers(f, 1 / (sqrt((double)columns_of(root, name)) * code_std), 0.4, is_bf16, bytes, file);
    else if (ends_with(name, "bias")) put_numbers(f, 0.02, 2, is_bf16, bytes, file);
    else if (shape && shape->n == 1) put_numbers(f, 1, 0, is_bf16, bytes, file);
    else if (is_bf16 || json_is(type, "F32")) put_random(f, is_bf16 ? HALVES : FLOATS, bytes, file);
    else die(file, "holds a type that bench_fill does not write");
}

/* --- GGUF ------------------------------------------------------------------------------------- */

/* Formats of blocks, and where the half-precision scales stand that make the weights' deviation about 0.02. */
static struct block_kind {
    enum dtype dtype;
    size_t bytes; /* of a block */
    struct {
        size_t at;
        double value;
    } scale[2];
    int n_scales;
    uint8_t *pool;
} block_kinds[] = {{DT_Q8_0, 34, {{0, 0.02 / 74}}, 1, NULL},
                   {DT_Q4_K, 144, {{0, 0.02 / 31 / 4.6}, {2, 0.02 * 7.5 / 31 / 4.6}}, 2, NULL},
                   {DT_Q6_K, 210, {{208, 0.02 / 74 / 18.5}}, 1, NULL}};
enum { BLOCK_KINDS = sizeof block_kinds / sizeof *block_kinds };

static void fill_blocks(struct block_kind *k) {
    if (!(k->pool = malloc(POOL))) die("pool", "no memory");
    for (size_t at = 0; at < POOL; at += 8) memcpy(k->pool + at, &(uint64_t){random_bits()}, 8);
    for (size_t at = 0; at + k->bytes <= POOL; at += k->bytes)
        for (int i = 0; i < k->n_scales; i++)
            memcpy(k->pool + at + k->scale[i].at, &(uint16_t){f32_to_f16((float)k->scale[i].value)}, 2);
}
static void put_blocks(FILE *f, const struct block_kind *k, size_t bytes, const char *name) {
    for (size_t n; bytes; bytes -= n) {
        n = bytes < PIECE ? bytes : PIECE / k->bytes * k->bytes;
        put(f, k->pool + random_bits() % ((POOL - PIECE) / k->bytes) * k->bytes, n, name);
    }
}
static void put_gguf_tensor(FILE *f, const struct gguf_tensor *t, const char *file) {
    if (fseeko(f, (off_t)t->offset, SEEK_SET)) die(file, "cannot be written");
    if (t->dtype == DT_F32) {
        if (t->ndim == 1) put_numbers(f, 1, 0, false, t->size, file);
        else put_random(f, FLOATS, t->size, file);
        return;
    }
    for (int i = 0; i < BLOCK_KINDS; i++)
        if (block_kinds[i].dtype == t->dtype) {
            put_blocks(f, &block_kinds[i], t->size, file);
            return;
        }
    die(file, "holds a type that bench_fill does not write");
}

static char *read_whole(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    char *text = NULL;
    *n = 0;
    if (!f) die(path, "cannot be read");
    for (size_t got = 1; got; *n += got) {
        if (!(text = realloc(text, *n + PIECE))) die(path, "no memory");
        got = fread(text + *n, 1, PIECE, f);
    }
    fclose(f);
    return text;
}
static void write_shard(const char *header, const char *to) {
    struct arena a = {0};
    struct json root;
    struct error e = {0};
    size_t n;
    char *text = read_whole(header, &n);
    FILE *f = fopen(to, "wb");
    if (!f) die(to, "cannot be created");
    if (n < 8 || json_parse(&a, text + 8, n - 8, 0, header, &root, &e)) die(header, n < 8 ? "is too short" : e.text);
    setvbuf(f, NULL, _IOFBF, 1 << 20);
    put(f, text, n, to);
    for (uint32_t i = 0; i < root.n; i++)
        if (!json_is(&root.items[2 * i], "__metadata__")) put_tensor(f, &root, i, to);
    if (fclose(f)) die(to, "cannot be written");
}
/* Writes every WRITERS-th tensor in a process of its own, the header in the first. */
static void write_gguf(const char *header, const char *to) {
    enum { FAR = 1 << 30 }; /* times 1,024: further than any tensor, whose positions the reader checks */
    struct arena a = {0};
    struct gguf g;
    struct error e = {0};
    size_t n;
    char *text = read_whole(header, &n);
    if (gguf_parse(&g, &a, (const uint8_t *)text, n + ((size_t)FAR << 10), header, &e)) die(header, e.text);
    FILE *f = fopen(to, "wb");
    if (!f) die(to, "cannot be created");
    put(f, text, n, to);
    if (fclose(f)) die(to, "cannot be written");
    for (size_t w = 0; w < WRITERS; w++) {
        seed = seed * 31 + w;
        const pid_t child = fork();
        if (child < 0) die(to, "no process for it");
        if (child) continue;
        if (!(f = fopen(to, "r+b"))) die(to, "cannot be written");
        setvbuf(f, NULL, _IOFBF, 1 << 20);
        for (size_t i = w; i < g.n_tensors; i += WRITERS) put_gguf_tensor(f, &g.tensors[i], to);
        if (fclose(f)) die(to, "cannot be written");
        _exit(0);
    }
}
static void copy_file(const char *from, const char *to) {
    size_t n;
    char *text = read_whole(from, &n);
    FILE *f = fopen(to, "wb");
    if (!f) die(to, "cannot be created");
    put(f, text, n, to);
    if (fclose(f)) die(to, "cannot be written");
    free(text);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: bench_fill FROM TO\n"), 2;
    DIR *d = opendir(argv[1]);
    if (!d) die(argv[1], "is no folder that can be read");
    mkdir(argv[2], 0777);
    fill_pools();
    for (struct dirent *x; (x = readdir(d));) {
        char from[1024], to[1024];
        const size_t n = strlen(x->d_name), cut = n > 7 && !strcmp(x->d_name + n - 7, ".header") ? n - 7 : n;
        if (x->d_name[0] == '.') continue;
        snprintf(from, sizeof from, "%s/%s", argv[1], x->d_name);
        snprintf(to, sizeof to, "%s/%.*s", argv[2], (int)cut, x->d_name);
        if (cut == n) {
            copy_file(from, to);
            continue;
        }
        for (size_t i = 0; i < n; i++) seed = seed * 31 + (uint8_t)x->d_name[i];
        if (cut > 5 && !memcmp(x->d_name + cut - 5, ".gguf", 5)) {
            for (int i = 0; i < BLOCK_KINDS; i++) fill_blocks(&block_kinds[i]);
            write_gguf(from, to);
            continue;
        }
        const pid_t child = fork();
        if (child < 0) die(x->d_name, "no process for it");
        if (child) continue;
        write_shard(from, to);
        _exit(0);
    }
    closedir(d);
    int bad = 0;
    for (int status; wait(&status) > 0;) bad |= status;
    return bad != 0;
}
