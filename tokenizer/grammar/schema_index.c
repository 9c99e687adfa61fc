#include <string.h>

#include "base/hash.h"
#include "tokenizer/grammar/schema_internal.h"

/* Look-ups in long lists of values and in long objects, by hash tables that are made once. */

enum { SHORT = 8 }; /* lists up to this length are searched without a table */

struct list_table { /* open addressing: numbers of items plus 1, 0: free */
    struct list_table *next;
    const struct json *list;
    uint32_t *v;
    size_t size;
};
enum { N_CHAINS = 1024 };
struct schema_tables {
    struct list_table *chains[N_CHAINS]; /* by the address of the list */
};

struct schema_tables *schema_tables_new(struct arena *a) {
    return arena_calloc(a, 1, sizeof(struct schema_tables));
}

/* Equal values, as json_equal() compares them, have the same hash. */
static uint64_t hash_value(const struct json *j, uint64_t seed) {
    switch ((enum json_type)j->type) {
    case JSON_NULL: return seed + 1;
    case JSON_BOOL: return seed + 2 + j->boolean;
    case JSON_INT:
    case JSON_FLOAT: {
        const double v = json_num(j, 0) + 0.0; /* +0.0 turns -0.0 into 0.0 */
        return hash64(&v, sizeof v, seed);
    }
    case JSON_STRING: return hash64(j->string, j->n, seed + 4);
    case JSON_ARRAY:
        seed += j->n;
        for (uint32_t i = 0; i < j->n; i++) seed = hash64(&seed, sizeof seed, hash_value(&j->items[i], seed));
        return seed;
    case JSON_OBJECT: { /* in any order */
        uint64_t sum = 0;
        for (uint32_t i = 0; i < j->n; i++) sum += hash_value(&j->items[2 * i + 1], hash_value(&j->items[2 * i], seed));
        return hash64(&sum, sizeof sum, seed);
    }
    }
    return seed;
}
uint64_t schema_hash_value(const struct json *value) { return hash_value(value, 0); }

/* Keys of an object, items of an array. */
static const struct json *item(const struct json *list, uint32_t i) {
    return &list->items[list->type == JSON_OBJECT ? 2 * i : i];
}

static const struct json *search(const struct json *list, const struct json *value) {
    for (uint32_t i = 0; i < list->n; i++)
        if (json_equal(item(list, i), value)) return item(list, i);
    return NULL;
}

static struct list_table *table_of(struct schema *s, const struct json *list) {
    const uint64_t h = hash64(&list, sizeof(void *), 0); /* of the address */
    struct list_table **chain = &s->tables->chains[h % N_CHAINS], *t = *chain;
    while (t && t->list != list) t = t->next;
    if (t || effort_spend(s->effort, 16ull * list->n)) return t;
    size_t size = 16;
    while (size < 2ull * list->n) size *= 2;
    if (!(t = arena_alloc(s->arena, sizeof *t))) return NULL;
    *t = (struct list_table){.next = *chain, .list = list, .size = size};
    if (!(t->v = arena_calloc(s->arena, size, sizeof *t->v))) return NULL;
    for (uint32_t i = 0; i < list->n; i++) {
        size_t at = hash_value(item(list, i), 0) & (size - 1);
        while (t->v[at] && !json_equal(item(list, t->v[at] - 1), item(list, i))) at = (at + 1) & (size - 1);
        t->v[at] = i + 1; /* the last of equal ones */
    }
    return *chain = t;
}

const struct json *schema_find(struct schema *s, const struct json *list, const struct json *value) {
    const struct list_table *t = list->n > SHORT && s->tables ? table_of(s, list) : NULL;
    if (!t) return effort_spend(s->effort, list->n) ? NULL : search(list, value);
    for (size_t at = hash_value(value, 0) & (t->size - 1); t->v[at]; at = (at + 1) & (t->size - 1))
        if (json_equal(item(list, t->v[at] - 1), value)) return item(list, t->v[at] - 1);
    return NULL;
}

const struct json *schema_find_name(struct schema *s, const struct json *list, const char *name, size_t n) {
    return schema_find(s, list, &(struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = name});
}
