/* DeepSeek-V2 and V2-Lite: MLA, softmax router without selection bias. Reference: the vendor's modeling_deepseek.py
 * (MoEGate); with norm_topk_prob it normalizes and does not scale. */
#include "base/ops.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {.scale = 1, .shared = 2};

static void parse(struct config_reader *r, struct config *c) {
    deepseek_attention(r, c);
    deepseek_experts(r, c, &defaults);
    static const char *const scores[] = {"softmax", NULL}, *const methods[] = {"greedy", "group_limited_greedy", NULL};
    config_choice(r, "scoring_func", scores, 0);
    c->score = SCORE_SOFTMAX;
    int limited = config_choice(r, "topk_method", methods, 0);
    int groups = config_int(r, "n_group", 1, 1, 4096), best = config_int(r, "topk_group", 1, 1, 4096);
    c->n_group = limited ? groups : 1;
    c->topk_group = limited ? best : 1;
    if (c->norm_topk && c->topk > 1) c->routed_scale = 1;
    else c->norm_topk = false;
}

static const char *const types[] = {"deepseek_v2", NULL};
const struct arch arch_deepseek_v2 = {
    .model_types = types, .title = "DeepSeek-V2", .parse = parse, .names = {DEEPSEEK_NAMES}};
