/* Token masks of schemas on a vocabulary, for grammar_peers.py: bench_grammar TOKENIZER_DIR reads a line {"schema":
 * ..., "ids": [[...], ...], "masks": true or false} from stdin and follows each list with a fresh matcher, as an answer
 * would. Writes a line {"compile_us": ..., "documents": [{"us": time of each mask, "accepted": tokens, "complete": true
 * or false}]} or {"error": ...}, then, with "masks", the masks as 64-bit words, one before each accepted token and one
 * after the last. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/grammar/matcher.h"
#include "tokenizer/grammar/source.h"

/* CPU time of this thread in microseconds. */
static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fail(const struct error *e) {
    fprintf(stderr, "%s\n", e->text);
    exit(1);
}

/* Follows one list of ids. Appends its member of "documents" to out, and its masks to `masks` if that is not NULL. */
static int follow(const struct grammar *g, const struct token_trie *t, const struct json *ids, struct buf *out,
                  struct buf *masks, struct error *e) {
    struct matcher *m;
    const uint64_t *bits;
    TRY(matcher_open(&m, g, t, e));
    buf_str(out, "{\"us\": [");
    uint32_t k = 0;
    int rc = 0;
    for (;; k++) {
        const double at = now_us();
        if ((rc = matcher_mask(m, UINT32_MAX, &bits, e))) break;
        buf_fmt(out, "%s%.2f", k ? ", " : "", now_us() - at);
        if (masks) buf_add(masks, (const char *)bits, ((size_t)t->n_ids + 63) / 64 * sizeof *bits);
        const int64_t id = k < ids->n ? json_int(&ids->items[k], -1) : -1;
        if (id < 0 || id >= t->n_ids || !(bits[id >> 6] >> (id & 63) & 1)) break;
        if ((rc = matcher_accept(m, (int32_t)id, e))) break;
    }
    buf_fmt(out, "], \"accepted\": %u, \"complete\": %s}", k, matcher_is_complete(m) ? "true" : "false");
    matcher_close(&m);
    return rc;
}

static int answer(const struct token_trie *t, const struct json *j, struct buf *out, struct buf *masks,
                  struct error *e) {
    const struct json *lists = json_get(j, "ids");
    struct buf schema = {0};
    struct grammar *g = NULL;
    if (!json_get(j, "schema") || !lists || lists->type != JSON_ARRAY)
        return error_set(e, ERR_USAGE, "schema and ids are required");
    json_write(&schema, json_get(j, "schema"));
    const double at = now_us();
    int rc =
        source_compile(&(struct grammar_source){.kind = SOURCE_SCHEMA, .text = schema.data, .n = schema.len}, &g, e);
    buf_fmt(out, "{\"compile_us\": %.1f, \"documents\": [", now_us() - at);
    for (uint32_t i = 0; i < lists->n && !rc; i++) {
        buf_str(out, i ? ", " : "");
        rc = follow(g, t, &lists->items[i], out, json_bool(json_get(j, "masks"), false) ? masks : NULL, e);
    }
    buf_str(out, "]}");
    grammar_free(&g);
    buf_free(&schema);
    return rc;
}

int main(int argc, char **argv) {
    struct tokenizer *t;
    struct token_trie *trie;
    struct error e = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (argc != 2) return fprintf(stderr, "usage: %s TOKENIZER_DIR\n", argv[0]), 2;
    if (tokenizer_open(&t, argv[1], &e)) fail(&e);
    const double at = now_us();
    if (token_trie_open(&trie, t, &e)) fail(&e);
    printf("{\"ids\": %d, \"trie_ms\": %.1f}\n", trie->n_ids, (now_us() - at) * 1e-3);
    fflush(stdout);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct arena arena = {0};
        struct buf out = {0}, masks = {0};
        struct json j;
        struct error why = {0};
        if (json_parse(&arena, line, (size_t)n, 0, "line", &j, &why) || answer(trie, &j, &out, &masks, &why)) {
            out.len = masks.len = 0;
            buf_str(&out, "{\"error\": ");
            json_quote(&out, why.text, strlen(why.text));
            buf_char(&out, '}');
        }
        printf("%.*s\n", (int)out.len, out.data);
        if (masks.len) fwrite(masks.data, 1, masks.len, stdout);
        fflush(stdout);
        buf_free(&out);
        buf_free(&masks);
        arena_free(&arena);
    }
    free(line);
    token_trie_close(&trie);
    tokenizer_close(&t);
    return 0;
}
