/* Step3: one head of keys and values, and queries of low rank, normed between their two projections; a softmax router,
 * experts in tensors of all, and a shared expert. Reference: the vendor's modeling code; vLLM, models/step3_text. */
#include "engine/model/step3.h"

#include <stdlib.h>
#include <string.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void mark_layer(struct config_reader *r, struct config *c, long layer) {
    if (layer < 0 || layer >= CONFIG_MAX_LAYERS) config_fail(r, "'moe_layers_enum' names layer %ld", layer);
    else if (layer < c->n_layers) c->layer[layer].moe = true; /* the others are MTP layers */
}
void step3_read_moe_layers(struct config_reader *r, struct config *c, int first) {
    const struct json *list = config_get(r, "moe_layers_enum");
    char text[4096];
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = !list && i >= first;
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n && !r->rc; i++)
        mark_layer(r, c, (long)json_int(json_at(list, i), -1));
    if (!list || list->type == JSON_ARRAY) return;
    if (list->type != JSON_STRING || list->n >= sizeof text) {
        config_fail(r, "'moe_layers_enum' is not a text of layers, separated by commas");
        return;
    }
    memcpy(text, list->string, list->n), text[list->n] = 0;
    for (char *at = text, *end; *at && !r->rc; at = *end == ',' ? end + 1 : end) {
        const long i = strtol(at, &end, 10);
        if (end == at || (*end && *end != ','))
            config_fail(r, "'moe_layers_enum' is not a text of layers, separated by commas");
        else mark_layer(r, c, i);
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    if (c->n_kv_heads != 1)
        config_fail(r, "'num_attention_groups' is %d: the reference has one head of keys and values", c->n_kv_heads);
    c->q_lora = config_int(r, "share_q_dim", 0, 1, 16384);
    config_read_rope(r, c, c->head_dim, 500000);
    step3_read_moe_layers(r, c, 1);
    if (!config_bool(r, "use_moe", true)) config_fail(r, "'use_moe' is false");
    config_ignore(r, "moe_every_n_layer"), config_ignore(r, "moe_layer_offset"); /* moe_layers_enum says it */
    config_ignore(r, "max_seq_len");
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "moe_num_experts", 0, 1, 4096);
    c->topk = config_int(r, "moe_top_k", 0, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = config_int(r, "share_expert_dim", 0, 1, 1 << 20);
    c->norm_topk = config_bool(r, "norm_expert_weight", false);
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}
static void parse_vision(struct config_reader *r, struct config *c) {
    /* keys of images, in either object */
    static const char *const unused[] = {"image_token_len",  "patch_token_len", "vision_select_layer",
                                         "use_im_start_end", "im_start_token",  "im_end_token"};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) config_ignore(r, unused[i]);
    config_skip_vision(r, c);
    parse(r, c);
}

#define L "model.layers.%d."
static const char *const types[] = {"step3_text", NULL}, *const vision[] = {"step3_vl", NULL},
                         *const aliases[][2] = {{"num_key_value_heads", "num_attention_groups"},
                                                {"max_position_embeddings", "max_position_embedding"},
                                                {NULL, NULL}};
#define ARCH(types, member, parser) \
    { \
        .model_types = types, .title = "Step3", .norm_eps = 1e-5, .defaults = {.context = 65536, .kv_heads = 1}, \
        .text_config_key = member, .parse = parser, .key_aliases = aliases, \
        .names = {NAMES_ENDS("model."),        NAMES_NORMS_BEFORE("model."), \
                  .q_a = L "self_attn.q_proj", .q_a_norm = L "self_attn.inter_norm", \
                  .q_b = L "self_attn.wq",     .k = L "self_attn.k_proj", \
                  .v = L "self_attn.v_proj",   .o = L "self_attn.o_proj", \
                  STEP3_EXPERT_NAMES,          NAMES_DENSE("model.")}, \
        .layout = { \
            .experts = true, \
            .has_suffix = true \
        } \
    }
const struct arch arch_step3_text = ARCH(types, NULL, parse), arch_step3_vl = ARCH(vision, "text_config", parse_vision);
