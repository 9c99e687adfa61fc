/* DBRX: GQA with one fused qkv matrix, clamped to +-clip_qkv; LayerNorm without bias; all experts of a layer in three
 * matrices, the last of them transposed. Reference: Databricks' modeling_dbrx.py; transformers, models/dbrx. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"

static void read_attention(struct config_reader *r, struct config *c) {
    struct config_reader in;
    config_open(r, "attn_config", &in);
    c->attn = ATTN_GQA;
    c->n_heads = config_int(r, "num_attention_heads", 0, 1, 1024);
    c->n_kv_heads = config_int(&in, "kv_n_heads", 1, 1, 1024);
    c->qkv_clip = (float)config_num(&in, "clip_qkv", 0, 0, 1e9);
    const int again = config_int(r, "num_key_value_heads", c->n_kv_heads, 1, 1024);
    if (again != c->n_kv_heads)
        config_fail(&in, "'num_key_value_heads' is %d, 'attn_config.kv_n_heads' %d", again, c->n_kv_heads);
    const bool given = config_has(&in, "rope_theta");
    double theta = config_num(&in, "rope_theta", 10000, 1, 1e12);
    config_num(&in, "attn_pdrop", 0, 0, 1); /* training only */
    config_has(&in, "model_type");
    config_close(r, "attn_config", &in);
    if (c->n_heads % c->n_kv_heads)
        config_fail(r, "%d attention heads do not divide among %d key-value heads", c->n_heads, c->n_kv_heads);
    if (c->hidden % c->n_heads) config_fail(r, "d_model %d does not divide among %d heads", c->hidden, c->n_heads);
    c->head_dim = c->v_dim = c->hidden / c->n_heads;
    c->attn_scale = (float)(1 / sqrt(c->head_dim));
    config_read_rope(r, c, c->head_dim, theta);
    /* transformers 5 computes with the former, which it sets to 10000 if a published config lacks it; the vendor's code
     * with the latter */
    if (given && c->rope.theta != theta)
        config_fail(r,
                    "'rope_parameters.rope_theta' is %g, 'attn_config.rope_theta' %g: remove the one that the model "
                    "was not trained with",
                    c->rope.theta, theta);
}

static void read_experts(struct config_reader *r, struct config *c) {
    struct config_reader in;
    config_open(r, "ffn_config", &in);
    c->moe_inter = config_int(&in, "ffn_hidden_size", 3584, 1, 1 << 20);
    c->n_experts = config_int(&in, "moe_num_experts", 4, 1, 4096);
    c->topk = config_int(&in, "moe_top_k", 1, 1, 64);
    /* the chosen weights are divided by their p-norm; they are positive, so p = 1 is their sum; null: no normalization
     */
    const struct json *p = json_get(in.root, "moe_normalize_expert_weights");
    c->norm_topk = !p || p->type != JSON_NULL;
    if (config_num(&in, "moe_normalize_expert_weights", 1, 0, 1e9) != 1)
        config_fail(&in, "'moe_normalize_expert_weights' is neither 1 nor null");
    if (config_bool(&in, "uniform_expert_assignment", false)) config_fail(&in, "'uniform_expert_assignment' is true");
    /* training only */
    config_has(&in, "moe_jitter_eps"), config_has(&in, "moe_loss_weight"), config_has(&in, "model_type");
    struct config_reader act;
    static const char *const acts[] = {"silu", NULL};
    config_open(&in, "ffn_act_fn", &act);
    config_choice(&act, "name", acts, 0);
    config_close(&in, "ffn_act_fn", &act);
    const int again = config_int(&in, "hidden_size", c->hidden, 1, 65536);
    if (again != c->hidden) config_fail(&in, "'ffn_config.hidden_size' is %d, 'd_model' %d", again, c->hidden);
    config_close(r, "ffn_config", &in);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = true;
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

static void parse(struct config_reader *r, struct config *c) {
    c->norm = NORM_LAYER;
    c->norm_eps = 1e-5f;
    read_attention(r, c);
    if (!r->rc) read_experts(r, c);
    config_ignore(r, "emb_pdrop"), config_ignore(r, "resid_pdrop"); /* training only */
}

#define L "transformer.blocks.%d."
static const char *const types[] = {"dbrx", NULL};
static const char *const keys[][2] = {{"hidden_size", "d_model"},
                                      {"num_attention_heads", "n_heads"},
                                      {"num_hidden_layers", "n_layers"},
                                      {"max_position_embeddings", "max_seq_len"},
                                      {NULL, NULL}};
const struct arch arch_dbrx = {
    .model_types = types,
    .title = "DBRX",
    .parse = parse,
    .names =
        {
            .embed = "transformer.wte",
            .norm = "transformer.norm_f",
            .head = "lm_head",
            .attn_norm = L "norm_attn_norm.norm_1",
            .ffn_norm = L "norm_attn_norm.norm_2",
            .q = L "norm_attn_norm.attn.Wqkv",
            .k = L "norm_attn_norm.attn.Wqkv",
            .v = L "norm_attn_norm.attn.Wqkv",
            .o = L "norm_attn_norm.attn.out_proj",
            .router = L "ffn.router.layer",
            .expert_gate = L "ffn.experts.mlp.w1",
            .expert_up = L "ffn.experts.mlp.v1",
            .expert_down = L "ffn.experts.mlp.w2",
        },
    .layout = {.qkv = true, .experts = true, .transposed_down = true},
    .key_aliases = keys,
};
