/* GLM-4.5, 4.6 and 4.7, the language model of GLM-4.5V, and Solar Open: GQA with partly rotated heads, DeepSeek-V3's
 * router, a shared expert. Reference: transformers, models/glm4_moe, models/glm4v_moe and models/solar_open. Attention
 * bias applies to q, k and v; Air has no norm over q and k. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 1, .dense = 1, .shared = 1, .norm = true},
                                      no_dense = {.scale = 1, .shared = 1, .norm = true};

static void parse_with(struct config_reader *r, struct config *c, const struct deepseek_defaults *d, double partial,
                       double theta) {
    config_read_gqa(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    c->qk_norm = config_bool(r, "use_qk_norm", false) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->rope.default_partial_factor = partial;
    config_read_rope(r, c, c->head_dim, theta);
    deepseek_experts(r, c, d);
    c->score = SCORE_SIGMOID;
    deepseek_groups(r, c, 1, 1);
}
static void parse(struct config_reader *r, struct config *c) { parse_with(r, c, &defaults, 0.5, 10000); }
static void parse_solar(struct config_reader *r, struct config *c) { parse_with(r, c, &no_dense, 1, 1000000); }
static void parse_vision(struct config_reader *r, struct config *c) {
    c->rope.default_section[0] = c->rope.default_section[1] = 12;
    c->rope.sections_in_order = true;
    config_skip_vision(r, c);
    parse(r, c);
    const int both = c->rope.section[0] + c->rope.section[1];
    if (!r->rc && both >= c->rope.dim / 2)
        config_fail(r, "'mrope_section' leaves no pairs for times: %d of %d are of rows and columns", both,
                    c->rope.dim / 2);
}

#define NAMES(m) \
    NAMES_GQA(m), NAMES_QK_NORM(m), NAMES_ROUTER(m), .router_bias = m "layers.%d.mlp.gate.e_score_correction_bias", \
                                                     NAMES_EXPERTS(m), NAMES_SHARED(m, "shared_experts"), \
                                                     NAMES_DENSE(m)
static const char *const types[] = {"glm4_moe", NULL}, *const vision[] = {"glm4v_moe", NULL},
                         *const solar[] = {"solar_open", NULL};
const struct arch arch_glm4_moe = {.model_types = types,
                                   .title = "GLM-4 MoE",
                                   .defaults = {.topk = 8},
                                   .norm_eps = 1e-5,
                                   .parse = parse,
                                   .names = {NAMES("model.")}};
const struct arch arch_glm4v_moe = {.model_types = vision,
                                    .title = "GLM-4V MoE",
                                    .defaults = {.topk = 8},
                                    .norm_eps = 1e-5,
                                    .text_config_key = "text_config",
                                    .parse = parse_vision,
                                    .names = {NAMES("model.language_model.")}};
const struct arch arch_solar_open = {.model_types = solar,
                                     .title = "Solar Open",
                                     .defaults = {.topk = 8},
                                     .norm_eps = 1e-5,
                                     .parse = parse_solar,
                                     .names = {NAMES("model.")}};
