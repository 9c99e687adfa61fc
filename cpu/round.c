/* Rounding to narrow formats and back (op_round). */
#include <math.h>

#include "base/minifloat.h"
#include "cpu/cpu_exec.h"

/* The least power of two that is not less than v, a normal number. */
static float power_above(float v) {
    const uint32_t u = f32_bits(v);
    return f32_of_bits((u + 0x7fffff) & 0x7f800000);
}

/* Rounds a >= 0 to E2M1, to the nearest, ties to the even code. */
static float magnitude_to_e2m1(float a) {
    if (a > 5) return 6;
    if (a >= 3.5f) return 4;
    if (a > 2.5f) return 3;
    if (a >= 1.75f) return 2;
    if (a > 1.25f) return 1.5f;
    if (a >= 0.75f) return 1;
    return a > 0.25f ? 0.5f : 0;
}
static float to_e2m1(float v) { return isnan(v) ? v : copysignf(magnitude_to_e2m1(fabsf(v)), v); }

static void round_block(float *x, int n, uint8_t kind) {
    float most = kind == ROUND_E4M3 ? 1e-4f : kind == ROUND_E2M1 ? 6 * 0x1p-126f : 6 * 0x1p-9f;
    for (int i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    const float scale = kind == ROUND_E4M3   ? power_above(most / 448)
                        : kind == ROUND_E2M1 ? power_above(most / 6)
                                             : e4m3_to_f32(f32_to_e4m3(most / 6));
    for (int i = 0; i < n; i++)
        x[i] = scale * (kind == ROUND_E4M3 ? e4m3_to_f32(f32_to_e4m3(x[i] / scale)) : to_e2m1(x[i] / scale));
}
static void round_task(void *arg, int i, int thread) {
    const struct op_round *o = arg;
    float *x = o->x + (size_t)i * (size_t)o->ld;
    for (int at = 0; at < o->m; at += o->block) round_block(x + at, o->block, o->kind);
}
int cpu_round(struct exec *base, const struct op_round *o) {
    if (o->block < 1 || o->m % o->block) return ERR_RUNTIME;
    return cpu_exec_for_each((struct cpu_exec *)base, o->n, round_task, (void *)o);
}
