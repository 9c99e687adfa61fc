#pragma once
/* Opens a built-in architecture by name: its config, and its tensors without weights. */
#include "engine/model/known.h"
#include "engine/store/shape.h"
#include "test/unit/unit.h"

static struct config config;
static struct shape shape;

static void open_known(const char *name) {
    const struct known_model *k = known_find(name);
    struct error e = {0};
    assert_non_null(k);
    shape_close(&shape);
    if (known_config(k, &config, &e) || shape_open(&shape, &config, k->dense, k->experts, &e)) fail_msg("%s: %s", name, e.text);
}
