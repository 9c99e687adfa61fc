#pragma once
/* Opens a built-in architecture by name: its config, and its tensors without weights. */
#include "engine/model/known.h"
#include "engine/weights/shape_only.h"
#include "test/unit/unit.h"

static struct config config;
static struct shape_only shape;

static void open_known(const char *name) {
    const struct known_model *k = known_model_find(name);
    struct error e = {0};
    assert_non_null(k);
    shape_only_close(&shape);
    if (known_model_config(k, &config, &e) || shape_only_open(&shape, &config, k->dense, k->experts, &e))
        fail_msg("%s: %s", name, e.text);
}
