/* SmolLM3: dense GQA without rotation in some layers. A window, if enabled, applies to those layers. Reference:
 * transformers, models/smollm3. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    bool rotated[CONFIG_MAX_LAYERS];
    config_read_dense(r, c);
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    config_read_rope(r, c, c->head_dim, 2000000);
    const int every = config_int(r, "no_rope_layer_interval", 4, 1, CONFIG_MAX_LAYERS);
    const bool listed = config_read_flags(r, c, "no_rope_layers", rotated),
               use = config_bool(r, "use_sliding_window", false);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 0, 1 << 24) : 0;
    config_ignore(r, "max_window_layers"); /* the reference ignores it */
    if (use && !window) config_fail(r, "'use_sliding_window' is true, but 'sliding_window' is missing or 0");
    if (config_has(r, "layer_types")) config_read_windows(r, c, use ? window : 0, 0);
    for (int i = 0; i < c->n_layers; i++) {
        if (!listed) rotated[i] = (i + 1) % every != 0;
        c->layer[i].rope = rotated[i] ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
        if (use && !config_has(r, "layer_types") && !rotated[i]) c->layer[i].window = window;
    }
}

static const char *const types[] = {"smollm3", NULL};
const struct arch arch_smollm3 = {.model_types = types,
                                  .title = "SmolLM3",
                                  .defaults = {.tied = true},
                                  .parse = parse,
                                  .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
