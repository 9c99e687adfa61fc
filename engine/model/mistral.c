/* Mistral 7B, NeMo, Small, Ministral and Ministral 3: dense GQA with a sliding window, if the config has one, in every
 * layer or, of Ministral, in those that layer_types lists. Ministral 3 scales queries by their positions
 * (llama_4_scaling_beta). Reference: transformers, models/mistral, models/ministral, models/ministral3 and, for the
 * vision models' language part, models/mistral3. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    if (r->outer) config_skip_vision(r, c);
    config_read_dense(r, c);
    config_read_rope(r, c, c->head_dim, 10000);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
}

static void parse_ministral(struct config_reader *r, struct config *c) {
    parse(r, c);
    if (config_has(r, "layer_types")) config_read_windows(r, c, c->layer[0].window, 0);
}

static const char *const types[] = {"mistral", "ministral3", NULL}, *const ministral[] = {"ministral", NULL},
                         *const with_vision[] = {"mistral3", NULL};
const struct arch arch_mistral = {
    .model_types = types, .title = "Mistral", .parse = parse, .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
const struct arch arch_ministral = {.model_types = ministral,
                                    .title = "Ministral",
                                    .parse = parse_ministral,
                                    .names = {NAMES_GQA("model."), NAMES_DENSE("model.")}};
#define M "language_model.model."
#define WITH_VISION(type) \
    { \
        .model_types = with_vision, .title = "Mistral", .text_config_key = "text_config", .text_type = type, \
        .parse = parse, \
        .names = {.embed = M "embed_tokens", \
                  .norm = M "norm", \
                  .head = "language_model.lm_head", \
                  NAMES_NORMS_BEFORE(M), \
                  NAMES_QKVO(M), \
                  NAMES_DENSE(M)}, \
    }
const struct arch arch_mistral3 = WITH_VISION("mistral"), arch_ministral3 = WITH_VISION("ministral3");
