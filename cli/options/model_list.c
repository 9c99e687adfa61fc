#include "cli/options/model_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int model_list_add(struct model_list *l, const char *name, const char *dir, const char *source) {
    if (mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) return ERR_MEMORY;
    struct model *m = &l->v[l->n++];
    snprintf(m->name, sizeof m->name, "%s", name);
    snprintf(m->dir, sizeof m->dir, "%s", dir);
    m->source = source;
    return 0;
}

static int compare_name(const void *a, const void *b) {
    return strcmp(((const struct model *)a)->name, ((const struct model *)b)->name);
}
void model_list_sort(struct model_list *l, size_t from) {
    if (l->n > from + 1) qsort(l->v + from, l->n - from, sizeof *l->v, compare_name);
}

void model_list_free(struct model_list *l) {
    mem_free(l->v);
    *l = (struct model_list){0};
}
