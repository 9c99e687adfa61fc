/* Phi-3, Phi-3.5 and Phi-4 (mini): dense GQA with one matrix for q, k, v and one for gate and up, and LongRoPE over a
 * part of a head. Sequences up to original_max_position_embeddings use the short factors, longer ones the long factors
 * at all positions. Phi-4-multimodal as text model: the same, published with adapters for images and sound beside
 * each matrix. Reference: Microsoft's modeling_phi3.py and modeling_phi4mm.py; transformers, models/phi3. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    static const char *const unused[] = {"embd_pdrop", "resid_pdrop", "full_attn_mod", "interpolate_factor", NULL};
    config_read_dense(r, c);
    config_read_rope(r, c, c->head_dim, 10000);
    config_ignore(r, "original_max_position_embeddings"); /* unused without LongRoPE */
    c->head_bias = config_bool(r, "lm_head_bias", false);
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].window = window;
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
}

/* Text needs none of the adapters. */
static void parse_multimodal(struct config_reader *r, struct config *c) {
    static const char *const others[] = {"audio_processor", "audio_config", "embd_layer", "img_processor",
                                         "speech_lora",     "vision_lora",  "mlp_bias",   NULL};
    config_ignore(r, "vision_config");
    for (int i = 0; others[i]; i++) config_ignore(r, others[i]);
    if (config_bool(r, "attention_bias", false)) config_fail(r, "'attention_bias' is true: the reference has none");
    parse(r, c);
}

static const char *const types[] = {"phi3", NULL}, *const multimodal[] = {"phi4mm", "phi4_multimodal", NULL},
                         *const adapters[] = {".lora_A.", ".lora_B.", NULL};
#define L "model.layers.%d."
/* own: what names of matrices end with where they have adapters */
#define NAMES(own) \
    { \
        NAMES_ENDS("model."), NAMES_NORMS_BEFORE("model."), \
            .o = L "self_attn.o_proj" own, .q = L "self_attn.qkv_proj" own, .k = L "self_attn.qkv_proj" own, \
            .v = L "self_attn.qkv_proj" own, .dense_gate = L "mlp.gate_up_proj" own, \
            .dense_up = L "mlp.gate_up_proj" own, .dense_down = L "mlp.down_proj" own \
    }
#define LAYOUT \
    { .qkv = true, .dense_gate_up = GATE_UP_STACKED }
const struct arch arch_phi3 = {
    .model_types = types, .title = "Phi-3", .norm_eps = 1e-5, .parse = parse, .names = NAMES(""), .layout = LAYOUT};
static const struct arch with_adapters = {.model_types = multimodal,
                                          .title = "Phi-4-multimodal",
                                          .names = NAMES(".base_layer"),
                                          .layout = LAYOUT,
                                          .skipped_tensors = adapters};
const struct arch arch_phi4mm = {.model_types = multimodal,
                                 .title = "Phi-4-multimodal",
                                 .norm_eps = 1e-5,
                                 .parse = parse_multimodal,
                                 .names = NAMES(""),
                                 .layout = LAYOUT,
                                 .variant = &with_adapters,
                                 .variant_tensor = L "self_attn.qkv_proj.base_layer.weight"};
