#pragma once
/* What config.json asks for, as one validated struct. Sources: the vendors' modeling code; transformers where they agree.
 * Everything a family's parser did not ask about and that would change the computation is refused by name. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/json.h"
#include "engine/base/ops.h"

enum { CONFIG_MAX_LAYERS = 512, CONFIG_MAX_EOS = 16 };

enum attn_kind { /* DSA: MLA over keys that an indexer chooses; COMPRESSED: a window of keys, and keys that stand for several tokens */
                 ATTN_GQA,
                 ATTN_MLA,
                 ATTN_DSA,
                 ATTN_COMPRESSED
};
enum index_kind { INDEX_OWN, INDEX_BEFORE };                /* a layer's own indexer, or the choice of the layer before */
enum norm_kind { NORM_RMS, NORM_RMS_PLUS_ONE, NORM_LAYER }; /* x / rms * w; x / rms * (1 + w); (x - mean) / deviation * w, and a bias */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_ALL };   /* over each head before rope; over all heads together */
enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN, ROPE_LLAMA3, ROPE_LONG, ROPE_FACTORS };
enum { ROPE_PAIRS_MAX = 512 };

struct rope_config {
    uint8_t kind;
    bool interleaved;                                                                                   /* pairs (2j, 2j+1) instead of (j, j + dim/2) */
    bool truncate;                                                                                      /* YaRN: whole-numbered correction range */
    int dim;                                                                                            /* rotated dimensions of a head, even */
    double theta, factor, original_max, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor; /* attention_factor 0: derive */
    double low_freq, high_freq;                                                                         /* llama3 */
    double partial; /* rotated share of a head where the config says nothing; 0: all */
    /* LongRoPE: what divides the frequencies, and the factor for cos and sin: [0] up to original_max tokens, [1] for longer ones */
    float factors[2][ROPE_PAIRS_MAX], factors_mscale[2];
};

struct arch;
struct config {
    const struct arch *arch;
    const struct tensor_names *names; /* the family's, or llama.cpp's */
    const struct layout *layout;
    char model_type[64];
    int vocab, hidden, n_layers, max_context;
    float norm_eps;
    uint8_t norm;   /* enum norm_kind */
    bool norm_bias; /* of NORM_LAYER */
    bool tied;      /* lm_head is the embedding */
    bool head_bias;

    uint8_t attn; /* enum attn_kind */
    int n_heads, n_kv_heads;
    int head_dim, v_dim;                    /* of a query/key head and a value head; MLA: nope + rope, v_head_dim */
    int q_lora, kv_lora, qk_nope, qk_rope;  /* MLA; q_lora 0: q straight from hidden */
    bool split_kv_b;                        /* MLA: k_b and v_b instead of kv_b */
    int o_groups, o_lora;                   /* COMPRESSED: groups of heads that the output takes to a low rank first */
    int index_heads, index_dim, index_topk; /* the lightning indexer, of DSA and COMPRESSED */
    bool index_interleaved;                 /* its rope, as rope.interleaved */
    bool qkv_bias, o_bias;
    uint8_t qk_norm; /* enum qk_norm */
    bool sinks;      /* a logit a head that takes part in the softmax with no value */
    bool attn_gate;  /* GQA: q_proj gives a head its query and a gate; what it attends to is multiplied by sigmoid(gate) */
    float qkv_clip;  /* q, k and v are held within +-this; 0: not */
    float attn_scale;
    struct rope_config rope, far_rope; /* far_rope: of layers with compressed keys */
    struct delta_config {              /* of layers with gated DeltaNet in place of attention; taps 0: there are none */
        int k_heads, v_heads, k_dim, v_dim, taps;
        bool fused;    /* inputs in two tensors, the rows of a key head together, instead of four */
        bool fused_ba; /* only those of b and a */
        bool made;     /* the tensor of rates is -exp(A_log) already */
    } delta;
    struct layer_config {
        bool moe, delta, hashed; /* hashed: a token's experts are in a table */
        uint8_t index;           /* enum index_kind */
        int window;              /* keys a query sees, itself included; 0: all */
        int ratio;               /* COMPRESSED: tokens that a key behind the window stands for; 0: there are none */
        bool overlap;            /* and of the window of tokens before it; such keys are chosen by an indexer */
    } layer[CONFIG_MAX_LAYERS];

    struct streams_config { /* several residual streams (hyper-connections); n 0: one */
        int n, iters;
        float eps;
    } streams;

    int dense_inter; /* of layers without experts */
    int n_experts, topk, n_group, topk_group, moe_inter;
    int shared_inter; /* all shared experts together; 0: none */
    bool shared_gate, router_bias, group_top2, norm_topk;
    bool router_shift; /* a bias of the router's logits; router_bias is of its choice alone */
    bool expert_bias;
    struct glu glu; /* of all feed-forwards */
    uint8_t score;  /* enum score_fn */
    float routed_scale, router_jitter;

    int block_rows, block_cols; /* of FP8 scales, 128 unless quantization_config says otherwise */
    int n_mtp;                  /* prediction layers after the last one, not part of the model proper */
    int bos, n_eos, eos[CONFIG_MAX_EOS];
};
/* An indexer chooses by what all products before it left: these keep 16 bits of an activation, so that rounding chooses nothing else. */
static inline bool config_wide(const struct config *c) { return c->index_topk > 0; }

/* Whether a sequence of n tokens turns its keys otherwise than a short one: then those of a shorter one are of no use. */
static inline bool config_far(const struct config *c, int n) { return c->rope.kind == ROPE_LONG && n > (int)c->rope.original_max; }

/* Reads one config.json. `what` names it in errors. force: unknown keys are logged instead of refused. ERR_MODEL. */
int config_parse(struct config *c, const struct json *root, const char *what, bool force, struct error *e);

/* For the families' parsers: each read marks its key as understood; out of range or of the wrong type is an error that
 * stays in the reader, so that a parser reads straight through and checks once. */
struct config_reader {
    const struct json *root, *outer; /* outer: what root is a member of, where keys that root lacks may stand; NULL: nothing */
    const char *const (*keys)[2];    /* of struct arch; NULL: none */
    const char *what;
    struct error *e;
    int rc;
    uint64_t seen[16], outer_seen[16]; /* bit i: member i was asked for */
};
bool config_has(struct config_reader *r, const char *key);                            /* there and not null */
int config_int(struct config_reader *r, const char *key, int none, int min, int max); /* none < min: required */
double config_num(struct config_reader *r, const char *key, double none, double min, double max);
bool config_bool(struct config_reader *r, const char *key, bool none);
/* The value must be one of the options (NULL-terminated); returns its index. none: index when absent. */
int config_choice(struct config_reader *r, const char *key, const char *const *options, int none);
const struct json *config_get(struct config_reader *r, const char *key); /* NULL when absent or null */
int config_fail(struct config_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* An object inside, to be read like the whole; close refuses what nobody asked for. *in is an empty one where there is none. */
void config_open(struct config_reader *r, const char *key, struct config_reader *in);
void config_close(struct config_reader *r, const char *key, struct config_reader *in);
/* rope_scaling / rope_parameters / rope_theta / partial_rotary_factor into c->rope. dim: rotated dimensions if not partial. */
void config_rope(struct config_reader *r, struct config *c, int dim, double theta);
void config_rope_of(struct config_reader *r, struct config *c, const char *key, int dim, double theta); /* the same from that object alone */
/* attention of the usual kind: heads, KV heads, head_dim, max_position_embeddings, scale = head_dim^-0.5 */
void config_gqa(struct config_reader *r, struct config *c);
/* layer[i].window from layer_types; without it, `window` in every other one of the first so many layers */
void config_windows(struct config_reader *r, struct config *c, int window, int layers);
/* layer[i].moe from mlp_only_layers and decoder_sparse_step (Qwen) */
void config_sparse_step(struct config_reader *r, struct config *c);
