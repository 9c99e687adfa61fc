/* Eugene Myers, "An O(ND) Difference Algorithm and Its Variations" (1986), with the common beginning and end left out
 * first, and without its refinement for linear memory: the number of differences is limited instead. */
#include "cli/tools/agent_diff.h"

#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"

enum { CONTEXT = 3, MOST_DIFFERENCES = 1000 };

struct line {
    const char *text;
    size_t n; /* with its line feed */
    uint64_t hash;
};
struct side {
    struct line *lines;
    size_t n, cap;
};
struct edit {
    struct side old, new;
    bool *is_deleted, *is_added; /* [old.n], [new.n] */
};

static int split(struct side *s, const char *text, size_t n) {
    while (n) {
        const char *end = memchr(text, '\n', n);
        const size_t k = end ? (size_t)(end + 1 - text) : n;
        if (mem_grow(&s->lines, &s->cap, s->n + 1, sizeof *s->lines)) return ERR_MEMORY;
        s->lines[s->n++] = (struct line){text, k, hash64(text, k, 0)};
        text += k, n -= k;
    }
    return 0;
}

static bool is_same(const struct line *a, const struct line *b) {
    return a->hash == b->hash && a->n == b->n && !memcmp(a->text, b->text, a->n);
}

/* Follows the furthest paths back from the end and marks their steps. rows[d][d + k]: how far the path on diagonal k
 * with d differences reaches. a0, b0: where the compared parts begin. */
static void mark_path(struct edit *t, int *const *rows, int d, int x, int y, size_t a0, size_t b0) {
    for (; d > 0; d--) {
        const int k = x - y, *before = rows[d - 1];
        const bool down = k == -d || (k != d && before[d - 1 + k - 1] < before[d - 1 + k + 1]);
        const int from_k = down ? k + 1 : k - 1, from_x = before[d - 1 + from_k], from_y = from_x - from_k;
        if (down) t->is_added[b0 + (size_t)from_y] = true;
        else t->is_deleted[a0 + (size_t)from_x] = true;
        x = from_x, y = from_y;
    }
}

/* Returns the furthest x on diagonal k with d differences before equal lines follow. */
static int step_to(const int *before, int d, int k) {
    if (!d) return 0;
    const bool down = k == -d || (k != d && before[d - 1 + k - 1] < before[d - 1 + k + 1]);
    return down ? before[d - 1 + k + 1] : before[d - 1 + k - 1] + 1;
}

/* Compares parts of n and m lines. False: too many differences, or no memory for their number. */
static bool find_path(struct edit *t, size_t a0, size_t n, size_t b0, size_t m) {
    int *rows[MOST_DIFFERENCES + 1] = {0}, d = 0;
    bool found = false;
    for (; d <= MOST_DIFFERENCES && !found; d++) {
        if (!(rows[d] = mem_alloc((2 * (size_t)d + 1) * sizeof **rows))) break;
        for (int k = -d; k <= d && !found; k += 2) {
            int x = step_to(d ? rows[d - 1] : NULL, d, k);
            while (x < (int)n && x - k < (int)m && x - k >= 0 &&
                   is_same(&t->old.lines[a0 + (size_t)x], &t->new.lines[b0 + (size_t)(x - k)]))
                x++;
            rows[d][d + k] = x;
            found = x == (int)n && x - k == (int)m;
        }
    }
    if (found) mark_path(t, rows, d - 1, (int)n, (int)m, a0, b0);
    for (int i = 0; i <= MOST_DIFFERENCES; i++) mem_free(rows[i]);
    return found;
}

static void compare(struct edit *t) {
    size_t head = 0, a = t->old.n, b = t->new.n;
    while (head < a && head < b && is_same(&t->old.lines[head], &t->new.lines[head])) head++;
    while (a > head && b > head && is_same(&t->old.lines[a - 1], &t->new.lines[b - 1])) a--, b--;
    if (a == head || b == head || !find_path(t, head, a - head, head, b - head)) {
        for (size_t i = head; i < a; i++) t->is_deleted[i] = true;
        for (size_t i = head; i < b; i++) t->is_added[i] = true;
    }
}

static void put_line(struct buf *out, char mark, const struct line *l) {
    buf_char(out, mark);
    buf_add(out, l->text, l->n);
    if (l->text[l->n - 1] != '\n') buf_str(out, "\n\\ No newline at end of file\n");
}

/* Numbers of a hunk: an empty range has the number of the line before it. */
static void put_range(struct buf *out, char mark, size_t from, size_t n) {
    buf_fmt(out, n == 1 ? "%c%zu" : "%c%zu,%zu", mark, n ? from + 1 : from, n);
}

/* Appends the hunk that begins at old line a and new line b, which differ, and moves both behind it. */
static void put_hunk(const struct edit *t, size_t *a, size_t *b, struct buf *out) {
    const size_t lead = *a < CONTEXT ? *a : CONTEXT;
    size_t i = *a, j = *b, n_same = 0;
    while (i < t->old.n || j < t->new.n) { /* to the first long run of equal lines */
        if (i < t->old.n && t->is_deleted[i]) i++, n_same = 0;
        else if (j < t->new.n && t->is_added[j]) j++, n_same = 0;
        else if (++n_same > 2 * CONTEXT) break;
        else i++, j++;
    }
    const size_t tail = n_same > CONTEXT ? (n_same > 2 * CONTEXT ? CONTEXT : n_same - CONTEXT) : 0;
    const size_t end_a = i - tail, end_b = j - tail;
    buf_str(out, "@@ ");
    put_range(out, '-', *a - lead, end_a - (*a - lead));
    buf_char(out, ' ');
    put_range(out, '+', *b - lead, end_b - (*b - lead));
    buf_str(out, " @@\n");
    for (*a -= lead, *b -= lead; *a < end_a || *b < end_b;) {
        if (*a < end_a && t->is_deleted[*a]) put_line(out, '-', &t->old.lines[(*a)++]);
        else if (*b < end_b && t->is_added[*b]) put_line(out, '+', &t->new.lines[(*b)++]);
        else put_line(out, ' ', &t->old.lines[(*a)++]), ++*b;
    }
}

int agent_diff_put(struct buf *out, const char *old, size_t n_old, const char *new, size_t n_new) {
    struct edit t = {0};
    int rc = split(&t.old, old, n_old);
    if (!rc) rc = split(&t.new, new, n_new);
    t.is_deleted = mem_calloc(t.old.n + 1, sizeof *t.is_deleted);
    t.is_added = mem_calloc(t.new.n + 1, sizeof *t.is_added);
    if (!t.is_deleted || !t.is_added) rc = ERR_MEMORY;
    if (!rc) compare(&t);
    for (size_t a = 0, b = 0; !rc && (a < t.old.n || b < t.new.n);)
        if ((a < t.old.n && t.is_deleted[a]) || (b < t.new.n &&t.is_added[b])) put_hunk(&t, &a, &b, out);
        else a++, b++;
    mem_free(t.old.lines);
    mem_free(t.new.lines);
    mem_free(t.is_deleted);
    mem_free(t.is_added);
    return rc ? rc : out->failed ? ERR_MEMORY : 0;
}
