#include "cli/server/api_members.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/options/breakers.h"

enum { MAX_STOPS = 256, MAX_BIASES = 1024, NAME_SHOWN = 60 };

bool api_members_present(const struct json *j) { return j && j->type != JSON_NULL; }
bool api_members_empty(const struct json *j) {
    return !api_members_present(j) || (j->type == JSON_BOOL && !j->boolean) || (j->type >= JSON_STRING && !j->n);
}

int api_members_flag(const struct json *root, const char *name, bool *out, struct error *e) {
    const struct json *j = json_get(root, name);
    if (!api_members_present(j)) return 0;
    if (j->type != JSON_BOOL) return error_set(e, ERR_USAGE, "%s: must be true or false", name);
    *out = j->boolean;
    return 0;
}

static int read_stop(struct api_request *r, const char *name, const struct json *j, struct error *e) {
    const uint32_t n = j->type == JSON_ARRAY ? j->n : 1;
    if (n > MAX_STOPS) return error_set(e, ERR_USAGE, "%s: at most %d strings", name, MAX_STOPS);
    r->n_stop = 0;
    if (!(r->stop = arena_alloc(&r->arena, (size_t)n * sizeof *r->stop + 1)))
        return error_set(e, ERR_MEMORY, "no memory");
    for (uint32_t i = 0; i < n; i++) {
        const struct json *s = j->type == JSON_ARRAY ? &j->items[i] : j;
        if (s->type != JSON_STRING || memchr(s->string, 0, s->n))
            return error_set(e, ERR_USAGE, "%s: must be strings", name);
        if (!(r->stop[r->n_stop++] = arena_strndup(&r->arena, s->string, s->n)))
            return error_set(e, ERR_MEMORY, "no memory");
    }
    return 0;
}

static int read_bias(struct api_request *r, const char *name, const struct json *j, struct error *e) {
    if (j->type == JSON_ARRAY && !j->n) return 0; /* as PHP writes an empty object */
    if (j->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "%s: must be an object of token ids and numbers", name);
    if (j->n > MAX_BIASES) return error_set(e, ERR_USAGE, "%s: at most %d tokens", name, MAX_BIASES);
    if (!(r->bias = arena_alloc(&r->arena, (size_t)j->n * sizeof *r->bias + 1)))
        return error_set(e, ERR_MEMORY, "no memory");
    r->n_bias = 0;
    for (uint32_t i = 0; i < j->n; i++) {
        const struct json *id = &j->items[2 * i];
        const double v = json_num(id + 1, NAN);
        char digits[10] = "";
        if (id->n < sizeof digits) memcpy(digits, id->string, id->n);
        if (!id->n || id->n >= sizeof digits || strspn(digits, "0123456789") != id->n || !(v >= -100 && v <= 100))
            return error_set(e, ERR_USAGE, "%s: must be an object of token ids and numbers from -100 to 100", name);
        r->bias[r->n_bias++] = (struct logit_bias){.id = (int32_t)strtol(digits, NULL, 10), .bias = (float)v};
    }
    return 0;
}

static int read_breakers(struct api_request *r, const char *name, const struct json *j, struct error *e) {
    char *out = arena_alloc(&r->arena, DRY_BREAKER_BYTES);
    char text[1024];
    if (!out) return error_set(e, ERR_MEMORY, "no memory");
    r->dry_breakers = out;
    if (j->type != JSON_STRING) return breakers_read(j, out, e) ? error_prefix(e, "%s", name) : 0;
    if (j->n >= sizeof text) return error_set(e, ERR_USAGE, "%s: more than %zu bytes", name, sizeof text - 1);
    snprintf(text, sizeof text, "%.*s", (int)j->n, j->string);
    return breakers_parse(text, out, e) ? error_prefix(e, "%s", name) : 0;
}

static int read_integer(const char *name, const struct json *j, double lo, double hi, int64_t *out, struct error *e) {
    const double v = json_num(j, NAN);
    if (!(v >= lo && v <= hi) || v != floor(v))
        return error_set(e, ERR_USAGE, "%s: must be an integer from %.0f to %.0f", name, lo, hi);
    *out = json_int(j, (int64_t)v);
    return 0;
}

/* Reads any integer: clients draw seeds from all of uint64_t, and some below 0. -1 is no seed. Equal seeds stay equal,
 * and those of an answer's choices, which follow each other, do not overflow. */
static int read_seed(const char *name, const struct json *j, int64_t *out, struct error *e) {
    static const double most = 9.2e18;
    const double v = json_num(j, NAN);
    if (!isfinite(v) || v != floor(v)) return error_set(e, ERR_USAGE, "%s: must be an integer", name);
    const int64_t seed = fabs(v) <= most ? json_int(j, (int64_t)v) : (int64_t)fmod(fabs(v), most);
    *out = seed >= -1 ? seed : -(seed + 1);
    return 0;
}

/* Reads a number of tokens. One that is larger than any context limits nothing. */
static int read_limit(const char *name, const struct json *j, double lo, int *out, struct error *e) {
    enum { MOST = 1 << 24 };
    const double v = json_num(j, NAN);
    if (!(v >= lo) || v != floor(v))
        return error_set(e, ERR_USAGE, "%s: must be an integer from 0, or -1 for no limit", name);
    *out = v < MOST ? (int)v : MOST;
    return 0;
}

/* Reads a value that is present. */
static int read_member(struct api_request *r, const struct api_member *m, const char *name, const struct json *j,
                       struct error *e) {
    void *field = (char *)r + m->offset;
    int64_t integer = 0;
    switch (m->kind) {
    case MEMBER_NUMBER: {
        const double v = json_num(j, NAN);
        if (!(v >= m->lo && v <= m->hi))
            return error_set(e, ERR_USAGE, "%s: must be a number from %g to %g", name, m->lo, m->hi);
        *(float *)field = (float)v;
        return 0;
    }
    case MEMBER_INTEGER:
        TRY(read_integer(name, j, m->lo, m->hi, &integer, e));
        *(int *)field = (int)integer;
        return 0;
    case MEMBER_SEED: return read_seed(name, j, field, e);
    case MEMBER_LIMIT: return read_limit(name, j, m->lo < -1 ? m->lo : -1, field, e);
    case MEMBER_FLAG:
    case MEMBER_NO_FLAG:
        if (j->type != JSON_BOOL) return error_set(e, ERR_USAGE, "%s: must be true or false", name);
        *(bool *)field = j->boolean == (m->kind == MEMBER_FLAG);
        return 0;
    case MEMBER_TEXT:
        if (j->type != JSON_STRING) return error_set(e, ERR_USAGE, "%s: must be a string", name);
        *(const struct json **)field = j;
        return 0;
    case MEMBER_STOP: return read_stop(r, name, j, e);
    case MEMBER_BIAS: return read_bias(r, name, j, e);
    case MEMBER_BREAKERS: return read_breakers(r, name, j, e);
    case MEMBER_REFUSED:
        if (!isnan(m->lo) && (api_members_empty(j) || json_num(j, NAN) == m->lo)) return 0;
        return error_set(e, ERR_USAGE, "%s is not supported: %s", name, m->why);
    case MEMBER_OTHER:
    case MEMBER_NOTHING: return 0;
    }
    return 0;
}

/* Finds the row of a member. *elsewhere: only other forms have the member. */
static const struct api_member *find_row(const struct api_member_table *t, const struct json *name, bool *elsewhere) {
    *elsewhere = false;
    for (size_t i = 0; i < t->n; i++) {
        if (!json_is(name, t->rows[i].name)) continue;
        if (!t->rows[i].forms || t->rows[i].forms & t->form) return &t->rows[i];
        *elsewhere = true;
    }
    return NULL;
}

int api_members_read(struct api_request *r, const struct json *root, const struct api_member_table *t, bool strict,
                     struct error *e) {
    for (uint32_t i = 0; i < root->n; i++) {
        const struct json *key = &root->items[2 * i], *value = key + 1;
        bool elsewhere;
        const struct api_member *m = find_row(t, key, &elsewhere);
        const int shown = (int)(key->n < NAME_SHOWN ? key->n : NAME_SHOWN);
        if (!api_members_present(value)) continue;
        if (m) {
            char name[NAME_SHOWN * 2];
            snprintf(name, sizeof name, "%s%s", t->prefix, m->name);
            TRY(read_member(r, m, name, value, e));
        } else if (elsewhere && t->other && !api_members_empty(value))
            return error_set(e, ERR_USAGE, "%s%.*s: belongs to %s", t->prefix, shown, key->string, t->other);
        else if (strict && !api_members_empty(value) && json_num(value, NAN) != 0)
            return error_set(e, ERR_USAGE, "%s%.*s is not supported: unknown member; without --strict it is ignored",
                             t->prefix, shown, key->string);
    }
    return 0;
}
