#pragma once
/* What config.json asks for, as one validated struct. Sources: the vendors' modeling code; transformers where they agree.
 * Everything a family's parser did not ask about and that would change the computation is refused by name. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/json.h"

enum { CONFIG_MAX_LAYERS = 512, CONFIG_MAX_EOS = 16 };

enum attn_kind { ATTN_GQA, ATTN_MLA };
enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN, ROPE_LLAMA3 };

struct rope_config {
    uint8_t kind;
    bool interleaved;                                                                                   /* pairs (2j, 2j+1) instead of (j, j + dim/2) */
    bool truncate;                                                                                      /* YaRN: whole-numbered correction range */
    int dim;                                                                                            /* rotated dimensions of a head, even */
    double theta, factor, original_max, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor; /* attention_factor 0: derive */
    double low_freq, high_freq;                                                                         /* llama3 */
};

struct arch;
struct config {
    const struct arch *arch;
    char model_type[64];
    int vocab, hidden, n_layers, max_context;
    float norm_eps;
    bool tied; /* lm_head is the embedding */

    uint8_t attn; /* enum attn_kind */
    int n_heads, n_kv_heads;
    int head_dim, v_dim;                   /* of a query/key head and a value head; MLA: nope + rope, v_head_dim */
    int q_lora, kv_lora, qk_nope, qk_rope; /* MLA; q_lora 0: q straight from hidden */
    bool qkv_bias, o_bias, qk_norm;        /* qk_norm: RMSNorm over each head before rope */
    float attn_scale;
    struct rope_config rope;
    struct layer_config {
        bool moe;
        int window; /* keys a query sees, itself included; 0: all */
    } layer[CONFIG_MAX_LAYERS];

    int dense_inter; /* of layers without experts */
    int n_experts, topk, n_group, topk_group, moe_inter;
    int shared_inter; /* all shared experts together; 0: none */
    bool shared_gate, router_bias, group_top2, norm_topk;
    uint8_t score; /* enum score_fn */
    float routed_scale;

    int block_rows, block_cols; /* of FP8 scales, 128 unless quantization_config says otherwise */
    int n_mtp;                  /* prediction layers after the last one, not part of the model proper */
    int bos, n_eos, eos[CONFIG_MAX_EOS];
};

/* Reads one config.json. `what` names it in errors. force: unknown keys are logged instead of refused. ERR_MODEL. */
int config_parse(struct config *c, const struct json *root, const char *what, bool force, struct error *e);

/* For the families' parsers: each read marks its key as understood; out of range or of the wrong type is an error that
 * stays in the reader, so that a parser reads straight through and checks once. */
struct config_reader {
    const struct json *root;
    const char *what;
    struct error *e;
    int rc;
    uint64_t seen[16]; /* bit i: member i was asked for */
};
bool config_has(struct config_reader *r, const char *key);                            /* there and not null */
int config_int(struct config_reader *r, const char *key, int none, int min, int max); /* none < min: required */
double config_num(struct config_reader *r, const char *key, double none, double min, double max);
bool config_bool(struct config_reader *r, const char *key, bool none);
/* The value must be one of the options (NULL-terminated); returns its index. none: index when absent. */
int config_choice(struct config_reader *r, const char *key, const char *const *options, int none);
const struct json *config_get(struct config_reader *r, const char *key); /* NULL when absent or null */
int config_fail(struct config_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* rope_scaling / rope_parameters / rope_theta / partial_rotary_factor into c->rope. dim: rotated dimensions if not partial. */
void config_rope(struct config_reader *r, struct config *c, int dim, double theta);
/* attention of the usual kind: heads, KV heads, head_dim, max_position_embeddings, scale = head_dim^-0.5 */
void config_gqa(struct config_reader *r, struct config *c);
/* layer[i].moe from mlp_only_layers and decoder_sparse_step (Qwen) */
void config_sparse_step(struct config_reader *r, struct config *c);
