#include "test/world/script.h"

#include <inttypes.h>
#include <string.h>

#include "test/world/fibers.h"

static const struct {
    const char *name;
    int weight, most[3];
} kinds[ACTION_KINDS] = {
#define ACTION_ROW(name, weight, a, b, c) {#name, weight, {a, b, c}},
    ACTIONS(ACTION_ROW)};

/* 0 .. most - 1, a small number as often as a large one. */
static int argument(int most) {
    enum { LARGE = 100 };
    if (most > LARGE && fibers_random(2)) most = LARGE / 10;
    return most ? (int)fibers_random((uint32_t)most) : 0;
}

void script_make(struct script *s, uint64_t seed, const char *gpus, int n) {
    int weight[ACTION_KINDS], sum = 0, user = 0;
    static const int factor[] = {0, 1, 5};
    fibers_reseed(seed);
    for (int k = 0; k < ACTION_KINDS; k++) {
        const bool is_needed = k == ACT_ASK || k == ACT_EVENTS || k == ACT_HEAL;
        weight[k] = kinds[k].weight * factor[is_needed ? 1 : fibers_random(3)];
        sum += weight[k];
    }
    const int n_users = 2 + (int)fibers_random(USERS - 1), n_texts = 1 << fibers_random(5);
    *s = (struct script){.seed = seed, .n = n < MOST_ACTIONS ? n : MOST_ACTIONS};
    snprintf(s->gpus, sizeof s->gpus, "%s", gpus);
    for (int i = 0; i < s->n; i++) {
        int at = (int)fibers_random((uint32_t)sum), k = 0, arg[3];
        while (at >= weight[k]) at -= weight[k++];
        for (int j = 0; j < 3; j++) arg[j] = argument(kinds[k].most[j]);
        for (int j = 0; j < 2; j++)
            if (kinds[k].most[j] == USERS) arg[j] %= n_users;
            else if (k == ACT_ASK) arg[j] %= n_texts; /* few questions: several users have the same chat */
        if (kinds[k].most[0] == USERS && fibers_random(3)) arg[0] = user; /* what one user does meets more often */
        if (kinds[k].most[0] == USERS) user = arg[0];
        s->v[i] = (struct action){(uint32_t)i, (enum action_kind)k, arg[0], arg[1], arg[2]};
    }
}

void script_write_action(const struct action *a, FILE *f) {
    fprintf(f, "%u %s %d %d %d\n", a->number, kinds[a->kind].name, a->a, a->b, a->c);
}
void script_write(const struct script *s, FILE *f) {
    fprintf(f, "seed %" PRIu64 " %s\n", s->seed, s->gpus);
    for (int i = 0; i < s->n; i++) script_write_action(&s->v[i], f);
}

int script_read(struct script *s, const char *path) {
    FILE *f = fopen(path, "r");
    char line[200], name[40];
    int at = 1;
    *s = (struct script){0};
    if (!f) return 1;
    if (!fgets(line, sizeof line, f) || sscanf(line, "seed %" SCNu64 " %99s", &s->seed, s->gpus) < 1) at = -1;
    while (at > 0 && fgets(line, sizeof line, f)) {
        struct action *x = &s->v[s->n];
        int k = 0;
        at++;
        if (*line == '#' || *line == '\n') continue;
        if (s->n == MOST_ACTIONS || sscanf(line, "%u %39s %d %d %d", &x->number, name, &x->a, &x->b, &x->c) != 5) break;
        while (k < ACTION_KINDS && strcmp(name, kinds[k].name)) k++;
        if (k == ACTION_KINDS) break;
        x->kind = (enum action_kind)k;
        for (int j = 0; j < 3; j++) {
            const int v = j == 0 ? x->a : j == 1 ? x->b : x->c;
            if (v < 0 || v >= (kinds[k].most[j] ? kinds[k].most[j] : 1)) k = ACTION_KINDS;
            if (k == ACTION_KINDS) break;
        }
        if (k == ACTION_KINDS) break;
        s->n++;
    }
    const bool is_whole = at > 0 && feof(f);
    fclose(f);
    return is_whole ? 0 : at < 0 ? 1 : at;
}
