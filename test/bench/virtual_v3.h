#pragma once
/* DeepSeek-V3 for virtual time: its config and layers, whose weights are addresses without memory. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/model/known.h"
#include "engine/weights/shape_only.h"

static struct shape_only v3;

/* layers of them, the first `dense` without experts. */
static void build(int layers, int dense) {
    static struct config c;
    struct error e = {0};
    shape_only_close(&v3);
    int rc = known_model_config(known_model_find("deepseek-v3"), &c, &e);
    c.n_layers = layers;
    for (int l = 0; l < layers; l++) c.layer[l].moe = l >= dense;
    if (!rc) rc = shape_only_open(&v3, &c, DT_E4M3, DT_E4M3, &e);
    if (!rc) return;
    fprintf(stderr, "%s\n", e.text);
    exit(1);
}
