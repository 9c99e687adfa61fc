/* Youtu-LLM: DeepSeek-V3's MLA with a dense FFN in every layer. Reference: transformers, models/youtu. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/deepseek.h"

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    config_num(r, "embedding_initializer_range", 0, 0, 1e6); /* of training */
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: the reference has none");
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
}

static const char *const types[] = {"youtu", NULL};
const struct arch arch_youtu = {.model_types = types,
                                .title = "Youtu-LLM",
                                .defaults = {.tied = true},
                                .parse = parse,
                                .names = {NAMES_USUAL("model."), DEEPSEEK_MLA_NAMES("model."), NAMES_DENSE("model.")}};
