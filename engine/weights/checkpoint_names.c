/* Gives tensors the names that a family has for them where a program that wrote the file uses others: prefixes of the
 * parts of a model, and the place of an expert's number. */
#include "engine/weights/checkpoint_names.h"

#include <string.h>

static bool starts_with(const char *name, const char *with, size_t n) { return !strncmp(name, with, n); }
/* The last n names between dots. */
static const char *last_names(const char *name, int n) {
    const char *at = name + strlen(name);
    while (at > name && (at[-1] != '.' || --n > 0)) at--;
    return at;
}

/* Whether a tensor's name begins with the n bytes of a prefix and then with `next`. */
static bool has_beginning(const struct checkpoint *c, const char *prefix, size_t n, const char *next) {
    const size_t more = strlen(next);
    for (size_t i = 0; i < c->n_tensors; i++)
        if (starts_with(c->tensors[i].name, prefix, n) && starts_with(c->tensors[i].name + n, next, more)) return true;
    return false;
}
static bool has_named(const struct checkpoint *c, const char *name) {
    return has_beginning(c, name, strlen(name), ".");
}

/* Returns the length of the prefix of a tensor's name if the rest is `own` and ".weight"; -1: it is another's. */
static long prefix_before(const char *name, const char *own) {
    static const char weight[] = ".weight";
    const size_t n = strlen(name), end = strlen(own) + sizeof weight - 1;
    if (n < end || strcmp(name + n - (sizeof weight - 1), weight) || !starts_with(name + n - end, own, strlen(own)))
        return -1;
    return n == end || name[n - end - 1] == '.' ? (long)(n - end) : -1;
}
/* Finds the only prefix before `own`. next: what some tensor's name has after the prefix; without: what the prefix has
 * not; NULL: any. Its length, or -1: there is none, or more than one. */
static long find_prefix(const struct checkpoint *c, const char *own, const char *next, const char *without,
                        const char **prefix) {
    long found = -1;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const char *name = c->tensors[i].name, *excluded = without ? strstr(name, without) : NULL;
        const long n = prefix_before(name, own);
        if (n < 0 || (excluded && excluded < name + n) || (next && !has_beginning(c, name, (size_t)n, next))) continue;
        if (found >= 0) return -1;
        found = n, *prefix = name;
    }
    return found;
}

/* The names of a family's tensors, any of them NULL. */
struct family_names {
    const char *const *all;
    size_t n;
};

/* Whether the names of a family have one that begins with a prefix and the first name of s. */
static bool is_of_family(struct family_names names, const char *prefix, size_t n_prefix, const char *s) {
    const size_t n = strcspn(s, ".");
    for (size_t i = 0; i < names.n; i++) {
        const char *own = names.all[i];
        if (own && starts_with(own, prefix, n_prefix) && starts_with(own + n_prefix, s, n) &&
            (!own[n_prefix + n] || own[n_prefix + n] == '.'))
            return true;
    }
    return false;
}
/* Replaces the prefix of `from` bytes by one of `to` bytes in the names of tensors that the family has. */
static int replace_prefix(struct checkpoint *c, const char *prefix, size_t from, const char *by, size_t to,
                          struct family_names names, struct error *e) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        struct tensor *t = &c->tensors[i];
        if (!starts_with(t->name, prefix, from) || !is_of_family(names, by, to, t->name + from)) continue;
        const size_t n = strlen(t->name + from) + 1;
        char *name = arena_alloc(&c->arena, to + n);
        if (!name) return error_set(e, ERR_MEMORY, "%s: no memory for its tensor names", c->dir);
        memcpy(name, by, to);
        memcpy(name + to, t->name + from, n);
        t->name = name;
    }
    return 0;
}

static int name_head(struct checkpoint *c, const struct tensor_names *names, const char *group, struct error *e) {
    const char *own = names->head ? last_names(names->head, 1) : NULL, *prefix = NULL;
    if (!own || has_named(c, names->head)) return 0;
    const long n = find_prefix(c, own, NULL, group, &prefix);
    const struct family_names head = {&names->head, 1};
    return n < 0 ? 0 : replace_prefix(c, prefix, (size_t)n, names->head, (size_t)(own - names->head), head, e);
}
static int name_text(struct checkpoint *c, const struct tensor_names *names, struct error *e) {
    const char *own = last_names(names->embed, 1), *number = strstr(names->attn_norm, "%d"), *found = NULL;
    const size_t prefix = (size_t)(own - names->embed);
    char group[64], first[72];
    if (!starts_with(names->attn_norm, names->embed, prefix) ||
        (size_t)(number - names->attn_norm) - prefix >= sizeof group)
        return 0;
    memcpy(group, names->attn_norm + prefix, (size_t)(number - names->attn_norm) - prefix);
    group[(size_t)(number - names->attn_norm) - prefix] = 0;
    strcat(strcpy(first, group), "0.");
    const long n = find_prefix(c, own, first, "mtp.", &found);
    if (n < 0) return 0;
    const struct family_names all = {(const char *const *)names, sizeof *names / sizeof(char *)};
    TRY(replace_prefix(c, found, (size_t)n, names->embed, prefix, all, e));
    TRY(name_head(c, names, group, e));
    return checkpoint_index(c, e);
}
int checkpoint_name_text(struct checkpoint *c, const struct arch *arch, struct error *e) {
    for (const struct arch *a = arch; a; a = a->variant == arch ? NULL : a->variant)
        if (has_named(c, a->names.embed)) return 0;
    return name_text(c, &arch->names, e);
}

int checkpoint_name_tower(struct checkpoint *c, const char *const *names, size_t n_names, struct error *e) {
    const char *patch = names[0], *own = last_names(patch, 2), *found = NULL;
    const long whole = has_named(c, patch) ? -1 : find_prefix(c, own, NULL, NULL, &found);
    if (whole < 0) return 0;
    /* what both prefixes end with stays: tensors of the merger may have only the rest of them */
    size_t from = (size_t)whole, to = (size_t)(own - patch);
    while (from && to && found[from - 1] == patch[to - 1]) from--, to--;
    while ((from && found[from - 1] != '.') || (to && patch[to - 1] != '.')) from++, to++;
    TRY(replace_prefix(c, found, from, patch, to, (struct family_names){names, n_names}, e));
    return checkpoint_index(c, e);
}

/* Writes experts.7.gate_proj for experts.gate_proj.7, in the arena. */
static bool put_number_first(const char *name) {
    static const char *const matrices[] = {"gate_proj", "up_proj", "down_proj"};
    const char *experts = strstr(name, ".experts.");
    for (size_t i = 0; experts && i < sizeof matrices / sizeof *matrices; i++) {
        char *at = (char *)experts + strlen(".experts.");
        const size_t n = strlen(matrices[i]);
        if (strncmp(at, matrices[i], n) != 0 || at[n] != '.') continue;
        const size_t digits = strspn(at + n + 1, "0123456789");
        if (!digits || at[n + 1 + digits] != '.') return false;
        memmove(at, at + n + 1, digits);
        at[digits] = '.';
        memcpy(at + digits + 1, matrices[i], n);
        return true;
    }
    return false;
}
int checkpoint_name_experts(struct checkpoint *c, struct error *e) {
    bool changed = false;
    for (size_t i = 0; i < c->n_tensors; i++) changed |= put_number_first(c->tensors[i].name);
    return changed ? checkpoint_index(c, e) : 0;
}
