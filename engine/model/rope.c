#include "engine/model/rope.h"

#include <math.h>

/* Returns the dimension whose wavelength completes `rotations` turns over the original context. */
static double correction_dim(const struct rope_config *r, double rotations) {
    return r->dim * log(r->original_max / (rotations * 2 * M_PI)) / (2 * log(r->theta));
}

static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

static float yarn(const struct rope_config *r, float *inv_freq) {
    int half = r->dim / 2;
    double low = correction_dim(r, r->beta_fast), high = correction_dim(r, r->beta_slow);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, r->dim - 1);
    if (low == high) high += 0.001;
    for (int j = 0; j < half; j++) {
        float ramp = (float)fmin(fmax((j - low) / (high - low), 0), 1);
        inv_freq[j] = inv_freq[j] / (float)r->factor * ramp + inv_freq[j] * (1 - ramp);
    }
    if (r->attention_factor > 0) return (float)r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return (float)(yarn_mscale(r->factor, r->mscale) / yarn_mscale(r->factor, r->mscale_all_dim));
    return (float)yarn_mscale(r->factor, 1);
}

static void llama3(const struct rope_config *r, float *inv_freq) {
    for (int j = 0; j < r->dim / 2; j++) {
        double wave = 2 * M_PI / fabsf(inv_freq[j]);
        if (wave > r->original_max / r->low_freq) inv_freq[j] = (float)(inv_freq[j] / r->factor);
        else if (r->high_freq > r->low_freq && wave >= r->original_max / r->high_freq) {
            double s = (r->original_max / wave - r->low_freq) / (r->high_freq - r->low_freq);
            inv_freq[j] = (float)((1 - s) * inv_freq[j] / r->factor + s * inv_freq[j]);
        }
    }
}

static float longrope(const struct rope_config *r, float *inv_freq) {
    int half = r->dim / 2;
    for (int k = 1; k >= 0; k--)
        for (int j = 0; j < half; j++) inv_freq[k * half + j] = inv_freq[j] / r->factors[k][j];
    return r->factors_mscale[0];
}

float rope_frequencies(const struct rope_config *r, float *inv_freq) {
    int half = r->dim / 2;
    const double turn = r->backwards ? -1 : 1;
    for (int j = 0; j < half; j++) inv_freq[j] = (float)(turn / pow(r->theta, 2.0 * j / r->dim));
    switch (r->kind) {
    case ROPE_LINEAR:
        for (int j = 0; j < half; j++) inv_freq[j] = (float)(inv_freq[j] / r->factor);
        break;
    case ROPE_YARN: return yarn(r, inv_freq);
    case ROPE_LLAMA3: llama3(r, inv_freq); break;
    case ROPE_LONG: return longrope(r, inv_freq);
    case ROPE_PROPORTIONAL:
        for (int j = 0; j < half; j++)
            inv_freq[j] = j < r->turning_pairs ? (float)(inv_freq[j] / (r->factor > 0 ? r->factor : 1)) : 0;
        break;
    case ROPE_FACTORS:
        for (int j = 0; j < half; j++) inv_freq[j] /= r->factors[0][j];
        break;
    }
    return 1;
}

void rope_fill_fope(const struct config *c, const float *const coefficients[2], float *out) {
    const int pairs = c->rope.fope_pairs, half = c->rope.dim / 2, rows = rope_row_floats(c);
    for (int which = 0; which < 2; which++)
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < half; i++, out++)
                *out = i < pairs && row % half < pairs
                           ? coefficients[which][(row / half * pairs + i) * pairs + row % half]
                           : 0;
    for (int row = 0; row < rows; row++) *out++ = row % half < pairs ? 0 : 1;
}

void rope_set_none(struct config *c) {
    c->rope = (struct rope_config){.kind = ROPE_DEFAULT, .dim = 2, .theta = 10000};
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = LAYER_ROPE_NONE;
}
