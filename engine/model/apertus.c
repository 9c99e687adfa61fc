/* Apertus: GQA with norms of heads, dense FFNs of one matrix with xIELU, whose numbers are learned. Reference: mlx-lm,
 * models/apertus, and transformers, models/apertus. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* GGUF has the numbers of xIELU in its metadata. */
static void read_xielu(struct config_reader *r, struct config *c) {
    static const char *const numbers[] = {"xielu.alpha_p", "xielu.alpha_n", "xielu.beta"};
    for (int k = 0; k < 3 && config_has(r, numbers[k]); k++) {
        const struct json *v = config_layer_list(r, c, numbers[k], false);
        for (int i = 0; i < c->n_layers && v; i++) {
            const double x = json_num(json_at(v, (uint32_t)i), NAN);
            if (!(fabs(x) < 1e6) || (k == 2 && !(x > 0))) config_fail(r, "'%s' of layer %d is %g", numbers[k], i, x);
            c->layer[i].xielu[k] = (float)x;
        }
    }
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"xielu", NULL};
    config_read_dense(r, c);
    config_choice(r, "hidden_act", acts, 0);
    c->no_up = c->learned_xielu = true;
    c->glu = (struct glu){.xielu_p = 0.8f, .xielu_n = 0.8f, .xielu_beta = 0.5f}; /* of layers without weights */
    c->qk_norm = config_bool(r, "qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->dense_bias = config_bool(r, "mlp_bias", false);
    if (config_bool(r, "post_norm", false))
        config_fail(r, "'post_norm' is true: the reference norms before its blocks");
    config_read_rope(r, c, c->head_dim, 12000000);
    read_xielu(r, c);
}

/* Apertus 1.5: the head may lack the rows of tokens of images and sound. Reference: transformers, models/apertus1p5. */
static void parse_1p5(struct config_reader *r, struct config *c) {
    static const char *const others[] = {"vision_tokenizer_config", "audio_tokenizer_config", "audio_token_id",
                                         "image_token_offset", "audio_token_offset"};
    for (size_t i = 0; i < sizeof others / sizeof *others && r->outer; i++) config_ignore(r, others[i]);
    if (r->outer) config_skip_vision(r, c);
    parse(r, c);
    const int head = config_int(r, "output_vocab_size", c->vocab, 1, c->vocab);
    if (head < c->vocab) c->embed_rows = c->vocab, c->vocab = head;
}

#define M "model."
#define L M "layers.%d."
static const char *const types[] = {"apertus", NULL}, *const text_1p5[] = {"apertus1p5_text", NULL},
                         *const whole_1p5[] = {"apertus1p5", NULL};
#define APERTUS(types_, title_, parse_, ...) \
    { \
        .model_types = types_, .title = title_, .norm_eps = 1e-5, .defaults = {.own_activation = true}, \
        .parse = parse_, \
        .names = {NAMES_ATTENTION(M), \
                  NAMES_QK_NORM(M), \
                  .attn_norm = L "attention_layernorm", \
                  .ffn_norm = L "feedforward_layernorm", \
                  .dense_gate = L "mlp.up_proj", \
                  .dense_down = L "mlp.down_proj", \
                  .xielu = {L "mlp.act_fn.alpha_p", L "mlp.act_fn.alpha_n", L "mlp.act_fn.beta"}}, \
        .skipped_tensors = (const char *const[]){"act_fn.eps", NULL}, __VA_ARGS__ \
    }
const struct arch arch_apertus = APERTUS(types, "Apertus", parse, .text_config_key = NULL);
const struct arch arch_apertus1p5_text = APERTUS(text_1p5, "Apertus 1.5", parse_1p5, .text_config_key = NULL);
const struct arch arch_apertus1p5 = APERTUS(whole_1p5, "Apertus 1.5", parse_1p5, .text_config_key = "text_config");
