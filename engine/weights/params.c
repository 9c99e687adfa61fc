#include "engine/weights/params.h"

#include "engine/model/arch.h"

size_t params_bytes(const void *base, const struct param *list, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += list[i].cols ? mat_bytes(params_mat(base, &list[i])) : (size_t)list[i].rows * sizeof(float);
    return sum;
}

void params_set_traits(const struct config *c, int layer, struct expert *e) {
    e->glu = config_glu(c, layer, true);
    e->is_transposed = c->layout->transposed_down, e->gate_up_transposed = c->layout->transposed_gate_up;
}
static void copy_traits(const struct expert *src, struct expert *view) {
    view->glu = src->glu, view->is_transposed = src->is_transposed, view->gate_up_transposed = src->gate_up_transposed;
}
void params_copy_traits(unsigned modules, const void *src, void *view) {
    if (modules & MODULE_EXPERT) copy_traits(src, view);
    if (modules & MODULE_ROUTER)
        copy_traits(&((const struct layer *)src)->parallel_dense, &((struct layer *)view)->parallel_dense);
    if (modules & MODULE_SHARED) copy_traits(&((const struct layer *)src)->dense, &((struct layer *)view)->dense);
}
