#pragma once
/* config.json as a validated struct. Sources: the vendors' modeling code; transformers where they agree. A key that no
 * parser read and that could change the computation is refused by name. One file, because its parts are members of one
 * struct, which all parsers fill. */
#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/ops.h"

/* MEMBERS: of one object of config.json */
enum { CONFIG_MAX_LAYERS = 512, CONFIG_MAX_EOS = 16, CONFIG_NGRAMS_MOST = 4, CONFIG_MEMBERS_MOST = 1024 };

enum attn_kind {
    ATTN_GQA,
    ATTN_MLA,
    ATTN_DSA,        /* MLA over keys that an indexer selects */
    ATTN_COMPRESSED, /* a window of keys, plus keys that represent several tokens */
    ATTN_CCA         /* GQA with convolved queries and keys */
};
enum mixer { /* A layer mixes tokens by one of these; all but the first and the last have a state instead of keys. */
             MIXER_ATTENTION,
             MIXER_DELTA, /* gated DeltaNet */
             MIXER_CONV,  /* a short gated convolution */
             MIXER_LIGHTNING,
             MIXER_MAMBA2,
             MIXER_KDA, /* Kimi delta attention */
             MIXER_MAMBA1,
             MIXER_NONE /* the layer is an FFN only */
};
enum output_norm { /* outputs that are normed before they are added to the stream */
                   OUTPUT_NORM_NONE,
                   OUTPUT_NORM_BLOCKS,  /* of attention blocks and FFNs */
                   OUTPUT_NORM_UNIT,    /* of blocks, without weights; those of FFNs are factors of the norm's input */
                   OUTPUT_NORM_EXPERTS, /* of FFNs with experts */
                   OUTPUT_NORM_FIRST    /* of attention blocks, and of the first layer's FFN */
};
enum reads_early { /* parts of a layer with experts that read the stream before attention instead of the one after it */
                   EARLY_NONE,
                   EARLY_ROUTER, /* the router, without a norm */
                   /* the router and the routed experts, through a norm of their own (layer.experts_norm) */
                   EARLY_ROUTED
};
enum index_kind {                 /* keys that a layer's attention sees */
                  INDEX_OWN,      /* those that its own indexer selects */
                  INDEX_PREVIOUS, /* the selection of the previous layer that has one */
                  INDEX_NONE      /* all */
};
enum norm_kind {
    NORM_RMS,          /* x / rms * w */
    NORM_RMS_PLUS_ONE, /* x / rms * (1 + w) */
    NORM_LAYER         /* (x - mean) / deviation * w, and a bias */
};
enum qk_norm {
    QK_NORM_NONE,
    QK_NORM_HEAD,  /* each head */
    QK_NORM_ALL,   /* all heads together */
    QK_NORM_UNIT,  /* each head, without weights, in layers with rope */
    QK_NORM_PLAIN, /* each head, without weights */
    QK_NORM_OWN,   /* each head, with weights of its own */
    QK_NORM_CLIP   /* each head is shortened to qk_limit; queries have a weight per element of each head before */
};
enum attn_gate { /* source of the gates that multiply the attention output */
                 ATTN_GATE_NONE,
                 ATTN_GATE_IN_QUERY, /* q_proj yields query and gate per head */
                 ATTN_GATE_ELEMENT,  /* a matrix, a gate per element */
                 ATTN_GATE_HEAD      /* a matrix, a gate per head */
};
enum layer_rope {
    LAYER_ROPE_FIRST,  /* config.rope */
    LAYER_ROPE_SECOND, /* config.second_rope */
    LAYER_ROPE_NONE
};
enum mamba_norm {                   /* of the output of Mamba-2 */
                  MAMBA_NORM_LAST,  /* after its gate */
                  MAMBA_NORM_FIRST, /* before its gate */
                  MAMBA_NORM_NONE
};
enum passes_kv { /* GQA, MLA: source of a layer's keys and values */
                 KV_OWN,
                 KV_PASSED, /* its own, for later layers too */
                 KV_TAKEN   /* those of kv_source, a layer with KV_PASSED; both layers use the same cache rows */
};
enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN, ROPE_LLAMA3, ROPE_LONG, ROPE_FACTORS, ROPE_PROPORTIONAL };
enum { ROPE_PAIRS_MAX = 512 };

struct rope_config {
    uint8_t kind;
    /* pairs (2j, 2j+1) instead of (j, j + dim/2) */
    bool interleaved;
    /* pairs turn by the negative angle */
    bool backwards;
    /* YaRN: round the correction range to integers */
    bool truncate;
    /* rotary dimensions of a head, even */
    int dim;
    /* attention_factor 0: derive */
    double theta, factor, original_max, beta_fast, beta_slow, mscale, mscale_all_dim, attention_factor;
    double low_freq, high_freq; /* llama3 */
    /* default rotary fraction of a head; 0: all */
    double default_partial_factor;
    int partial_of;  /* dimensions that the fraction is of; 0: those asked for */
    bool reads_fope; /* the config has FoPE's keys */
    /* M-RoPE: an image's tokens have a time, a row and a column; frequencies of rows and of columns (op_rope_part). The
     * parts of text are equal. 0: no M-RoPE. default_section: without mrope_section, for families that have M-RoPE */
    int section[2], default_section[2];
    bool sections_in_order; /* times first, then rows, then columns; else interleaved */
    /* FoPE: number of leading pairs, and of frequencies. Each KV head's cos and sin are sums over the frequencies,
     * weighted by tensors of the checkpoint. cos and sin of the other pairs are both 1. 0: no FoPE */
    int fope_pairs;
    int turning_pairs; /* ROPE_PROPORTIONAL: the first pairs, which turn; the others have frequency 0 */
    /* LongRoPE: divisors of the frequencies, and the factor for cos and sin: [0] up to original_max tokens, [1] for
     * longer sequences */
    float factors[2][ROPE_PAIRS_MAX], factors_mscale[2];
};

struct arch;
struct config {
    const struct arch *arch;
    const struct tensor_names *names; /* the family's, or llama.cpp's */
    const struct layout *layout;
    char model_type[64];
    /* a text model inside a model of another family. model_type is its own */
    bool is_part;
    int vocab, hidden, n_layers, max_context;
    int embed_rows;          /* rows of the embedding, if there are more than vocab; 0: vocab */
    bool head_is_padded;     /* the stored head has embed_rows rows, too; Inkling 2 */
    bool embed_norm;         /* embeddings are normed */
    bool embed_norm_unit;    /* embeddings are normed without weights */
    bool centered_norms;     /* norms of layers are published less 1 */
    bool centered_head_norm; /* the last norm is published less 1; GigaChat 3.5 */
    float norm_eps;
    float output_eps;     /* of norms of outputs; 0: norm_eps; Muse Spark */
    float embed_scale;    /* factor of the embeddings; 0: 1 */
    float residual_scale; /* factor of what attention and FFN blocks add to the residual stream; 0: 1; Granite */
    float logit_cap;      /* logits become cap * tanh(logit / cap); 0: not */
    float logit_scale;    /* factor of the logits; 0: 1 */
    uint8_t norm;         /* enum norm_kind */
    bool norm_bias;       /* with NORM_LAYER; Phi-3.5-MoE */
    /* norms of the stream: equal parts of a row that are normed each alone; 0: 1; K2 Horizon */
    int norm_groups;
    bool tied; /* lm_head is the embedding */
    bool head_bias;

    uint8_t attn;            /* enum attn_kind */
    int n_heads, n_kv_heads; /* the largest of any layer */
    /* query/key head and value head, the largest of any layer; MLA: nope + rope, v_head_dim */
    int head_dim, v_dim;
    /* MLA; q_lora, GQA too: width of the normed latent that queries are projected from; 0: from hidden */
    int q_lora, kv_lora, qk_nope, qk_rope;
    float q_latent_scale, kv_latent_scale; /* factors of the normed latents; 0: 1; LongCat-Flash */
    bool scales_latents;                   /* these factors are sqrt(hidden / width of the latent) */
    bool k_rope_norm;                      /* MLA: the rotated part of keys is normed; Dots 3 Note */
    float latent_eps;                      /* of their norms; 0: 1e-6 */
    /* MLA: queries, and an indexer's, are multiplied per head by a weight times log(position + 1), plus another;
     * Mistral Large 4. */
    bool scales_heads;
    /* MLA: queries are projected from the normed and the raw latent together; A.X K2. */
    bool q_raw;
    bool split_kv_b; /* MLA: k_b and v_b instead of kv_b */
    /* COMPRESSED: head groups of the low-rank output projection, and its rank; DeepSeek-V4, V4.1. */
    int o_groups, o_lora;
    /* GQA, DSA: an indexer selects index_topk blocks of this many keys; 0: it selects keys */
    int index_block;
    int index_heads, index_dim, index_topk; /* lightning indexer of DSA and COMPRESSED */
    /* GQA: each index head selects blocks for its group of KV heads, by their best keys; and all see the query's
     * block; MiniMax-M3. */
    bool index_by_group;
    /* With index_by_group: number of blocks before the query's own that are always selected; MiniMax-M3. */
    int index_latest;
    bool index_interleaved; /* rope layout of the indexer, as rope.interleaved */
    bool index_rope_last;   /* DSA: the indexer's last dimensions rotate, not its first; Hunyuan 4 */
    float index_eps;        /* DSA: of the norm of its keys; 0: 1e-6; Hunyuan 4 */
    /* COMPRESSED: index keys are projected from multi-token keys, which a source layer passes to later ones; an
     * indexer selects among them; DeepSeek-V4.1. */
    bool index_from_entries;
    /* With index_from_entries: keys and the indexer's queries are rounded as in training (op_round); DeepSeek-V4.1. */
    bool rounds_keys;
    /* With index_from_entries: later indexers select among the keys of this many blocks, each of that many keys. 0: all
     */
    int candidate_blocks, candidate_keys; /* DeepSeek-V4.1 */
    /* DSA: the indexer's queries are projected from the layer's input, through a norm, instead of MLA's query
     * latent; Mistral Large 4. */
    bool index_from_input;
    bool qkv_bias, o_bias;
    /* With layout.qkv: the tensor has this many equal pieces, each with rows of q, k and v; 0: one; MiMo-V2.5, 2.6. */
    int qkv_pieces;
    uint8_t qk_norm; /* enum qk_norm */
    bool qk_norm_after_rope;
    bool sinks;          /* a logit per head that takes part in the softmax without a value */
    bool projects_sinks; /* GQA: this logit is a product of the block's input; needs rel_dim; Inkling 2 */
    /* enum attn_gate; enum gate_kind: the function of the gate that multiplies the attention output */
    uint8_t attn_gate, attn_gate_kind;
    bool attn_gate_bias; /* with ATTN_GATE_ELEMENT: the gates of a head have a bias; Beam */
    /* GQA: in layers with experts, a token's values are a sum of the outputs of value_topk of these value experts,
     * which a router of its own selects and weighs (op_values); 0: one matrix; K2 Horizon */
    int n_value_experts, value_topk;
    float v_scale; /* GQA: factor of the values; 0: 1; MiMo-V2 */
    bool v_norm;   /* GQA: values are normed per head, without weights */
    /* GQA: the attention output is normed per head, without weights, before its gate; Muse Spark. */
    bool head_out_norm;
    /* GQA: KV heads have a key of their own that each of their queries sees and that has no value; IQuest-Q1 */
    bool sink_keys;
    int rel_dim; /* GQA: scores get a bias by distance, a query's coefficients [rel_dim] times a table; 0: none */
    /* QK_NORM_CLIP: longest heads of queries and keys, and of coefficients with weights of their own; rel_limit 0:
     * neither; Inkling 2. */
    float qk_limit, rel_limit;
    /* GQA: causal convolutions of keys, values and of both blocks' outputs, each plus its input; 0: none. Their outputs
     * must be apart from the stream: config_keep_stream, or streams.block_layers */
    int short_taps;
    bool scales_short;   /* these sums are divided by the root of the number of summands; Inkling 2 */
    struct query_scale { /* queries are multiplied by a function of their position (op_scale); slope 0: not */
        float slope;
        int every, shift;
        uint8_t kind;      /* enum scale_kind; SCALE_SMOOTH: in layers without a window only */
        bool no_rope_only; /* in layers without rope only */
    } query_scale;
    float qkv_clip;              /* q, k and v are clamped to +-this; 0: no clamp */
    float attn_scale, score_cap; /* score_cap: scores become cap * tanh(score / cap); 0: not */
    int temperature_len;         /* GQA: as in op_attention; 0: none; Grok */
    /* The frequencies of rope are multiplied by the exponentials of a tensor; Mistral Large 4. */
    bool rope_alpha;
    /* second_rope: of the layers that select it, and of compressed keys; dim 0: none */
    struct rope_config rope, second_rope;
    struct delta_config { /* layers with gated DeltaNet instead of attention; taps 0: none */
        int k_heads, v_heads, k_dim, v_dim, taps;
        bool fused;           /* inputs in two tensors, grouped by key head, instead of four */
        bool fused_ba;        /* only b and a are fused */
        bool sigmoid_gate;    /* the output gate is a sigmoid instead of SiLU */
        bool rates_converted; /* the tensor of rates is already -exp(A_log) */
        bool norm_centered;   /* its norm is published less 1; GigaChat 3.5 */
        float norm_scale;     /* factor of its normed outputs; 0: 1; GigaChat 3.5 */
        bool is_tiled;        /* value heads are ordered so that head h has key head h % k_heads */
    } delta;
    struct conv_config { /* layers with a short gated convolution instead of attention */
        int taps;
        bool bias; /* of both projections and of the convolution */
    } conv;
    /* layers with Mamba-2 or Mamba-1 instead of attention; the inner width is heads * head_dim */
    struct mamba_config {
        int heads, head_dim, groups;   /* each group of heads has its own B and C */
        int state, taps;               /* state: rows of a head's state */
        int rank;                      /* Mamba-1, of one head and group: width of the steps before their projection */
        bool conv_bias, projects_bias; /* biases of the convolution, of both projections */
        uint8_t norm;                  /* Mamba-2: enum mamba_norm */
        /* Mamba-2: factors of z, x, B, C and the steps, and of the output; 0: 1; Falcon-H1 */
        float scale[5], out_scale;
    } mamba;
    struct lightning_config { /* layers with lightning attention */
        int heads, dim;
        int norm_groups; /* groups of heads, each normed alone after it */
        /* Queries and keys are rotated, and queries scaled, instead of SiLU; rows of mix_in are q, then k, then v,
         * instead of those per head. */
        bool is_rotated;
        bool qk_norm; /* with is_rotated: norms of their heads */
    } lightning;
    struct kda_config { /* layers with Kimi delta attention */
        int heads, dim, taps;
        int rank, gate_rank; /* ranks of the two matrices that make decays and gates; 0: one matrix of full rank */
        /* negative: decays are exp(bound * sigmoid), so never less than exp(bound); 0: exp(-rate * softplus) */
        float bound;
        bool doubles_beta;       /* updates of the state have a factor of up to 2 instead of 1; Solar Open 2 */
        bool rates_are_positive; /* with delta.rates_converted: the tensor of rates is exp(A_log); Ling 3 */
        bool rates_are_padded;   /* the tensor of rates may be longer than heads; Kimi K3 */
    } kda;
    struct cca_config {
        int taps[2]; /* CCA: of the convolutions within channels and within heads */
    } cca;
    struct layer_config {
        bool moe, hashed; /* hashed: a token's experts come from a table; DeepSeek-V4, V4.1 */
        /* is a mixer only. With residual streams a layer has both, or neither (config_is_bare), unless the next one
         * is beside it */
        bool no_ffn;
        /* Its mixer reads the stream that the previous layer's read, and both outputs are added together; needs
         * config_keep_stream; Falcon-H1. */
        bool is_beside;
        uint8_t mixer;        /* enum mixer */
        struct branch_scale { /* with config.norms_stream, of the attention block and of the FFN */
            float stream, output;
            bool is_raw; /* the stream stays as it is; IQuest-Q1 */
        } branch[2];
        uint8_t index;           /* enum index_kind */
        uint8_t ngram;           /* 1 + index in config.ngram; 0: none */
        uint8_t rope;            /* enum layer_rope */
        bool no_sinks;           /* has no sinks though the model does; MiMo-V2 */
        int n_heads, n_kv_heads; /* 0: the model's */
        /* GQA: of queries, keys and values; MLA: of queries; 0: the model's */
        int head_dim;
        float attn_scale; /* GQA and MLA; 0: the model's */
        /* MLA; 0: the model's, which are the largest of any layer; qk_nope may be larger */
        int q_lora, kv_lora, qk_nope, qk_rope, v_dim;
        /* MLA: qk_rope is 0, though the model's is not; Mistral Large 4. */
        bool no_qk_rope;
        /* With config.rel_dim: distances that have a bias; Inkling, Inkling 2. */
        int extent;
        /* GQA: values are the projected keys, before norm and rotation; Gemma 4. */
        bool v_is_k;
        /* Is layer - repeats of the checkpoint, in this pass over it (streams.loop_passes; Inkling 2), or after layers
         * that are left out (Nemotron NAS) */
        int repeats, pass;
        /* With streams.block_layers: keys and values have inputs of their own, and taps per row and head beside
         * those of short_taps; Inkling 2. */
        bool mixes_kv;
        uint8_t passes_kv; /* enum passes_kv, and the place of its keys and values in work.carried */
        int carried_at;
        /* with KV_TAKEN: the earlier layer whose keys and values, and their places in the cache, this one uses */
        int kv_source;
        /* learned_xielu without tensors (GGUF): alpha_p, alpha_n and beta as published; beta 0: tensors; Apertus */
        float xielu[3];
        int dense_inter;    /* width of its dense FFN; 0: the model's; Gemma 4 */
        float glu_limit[2]; /* limit of the activation: routed experts; shared expert or dense FFN. 0: config.glu's */
        int window;         /* number of keys a query sees, including its own; 0: all */
        int chunk_keys;     /* GQA: a query sees keys of its own chunk of this many positions; 0: all; Llama 4 */
        bool keeps_input;   /* its normed FFN input is kept: the next layer's router and routed experts read it */
        /* Router and routed experts read the previous layer's kept input; the shared expert reads this layer's own
         * normed input; LongCat-Flash. */
        bool routes_kept;
        int ratio; /* COMPRESSED: tokens per key outside the window; 0: no such keys */
        /* A key also covers the window of tokens before it; such keys are selected by an indexer; DeepSeek-V4. */
        bool overlap;
        /* With candidate_blocks: its indexer selects those blocks; or selects among their keys; DeepSeek-V4.1. */
        bool lists_blocks, limits_keys;
    } layer[CONFIG_MAX_LAYERS];

    /* several residual streams (hyper-connections); n 0: one stream, to which blocks add directly */
    struct residual_streams {
        int n, iters; /* iters 0: blocks only add to the streams, which are not mixed with each other */
        float eps;
        float magnitude, post_eps; /* as in op_mix; Hunyuan 4 */
        /* A block reads a mean of the streams' norms, weighted by gates of low rank, and has no other norm;
         * Qwen3.8-Flash-Next. */
        bool is_gated;
        int rank; /* rank of the gates' projections; Qwen3.8-Flash-Next */
        /* The mix before a block gives the weights of the next block's input; the first input is the embedding;
         * DeepSeek-V4.1. */
        bool passes_weights;
        int weights_at;   /* their place in work.carried; DeepSeek-V4.1 */
        bool is_averaged; /* merged by their mean before the final norm, without weights; GLM-5.3-Flash */
        /* one stream, to which a block's output is added when the next block begins (config_keep_stream) */
        bool is_plain;
        int loop_from, loop_to,
            /* with block_layers: number of passes over these layers; a pass after the first gets messages of the one
               before. 0: none */
            loop_passes;
        int message_rank; /* rank of the gates that scale messages */
        /* attention residuals (op_pool): a stream is the sum of the outputs of this many layers, the first that of the
         * embedding; 0: not */
        int block_layers;
        /* with block_layers: blocks read sums of the streams as they are, instead of their norms, with eps; their
         * queries have factors */
        bool sums_raw;
    } streams;
    /* the stream and a block's output get a bias and a factor per channel before they are added; needs
     * config_keep_stream */
    bool merges_stream;
    /* merges_stream without biases: with gates g, an output's factors are b = sigmoid(g / temperature), the stream's
     * sqrt(1 - b^2). 0: not; Muse Spark. */
    float merge_temperature;
    /* A block leaves branch.stream * norm(stream) + branch.output * its output; needs config_keep_stream;
     * MiniMax-Text-01. */
    bool norms_stream;
    /* The k-th block leaves (sqrt(k) * stream + its output) / sqrt(k + 1), but hearth keeps the sum: only norms read
     * it (streams_eps); Beam. */
    bool divides_stream;
    /* a block's normed input is multiplied by the sigmoid of an MLP of it, of this width (config_norm_is_gated); 0: not
     */
    int norm_gate_rank;
    /* All other normed rows have such a factor: outputs of blocks, latents, the input of the head; GigaChat 3.5. */
    bool gates_all_norms;
    float norm_gate_scale; /* factor of these sigmoids; 0: 1; GigaChat 3.5 */
    bool no_input_norm;    /* blocks read the residual stream as it is */
    bool unit_norms;       /* norms of blocks' inputs and the final norm have no weights; nanochat */
    uint8_t output_norm;   /* enum output_norm; needs config_keep_stream */
    bool parallel_block;   /* attention and FFN read the same stream; needs config_keep_stream; Cohere */
    /* Layers with experts have a dense FFN beside them (struct layer); needs config_keep_stream; Gemma 4. */
    bool parallel_dense;
    /* A layer has a factor of its dense FFN's output, or of its experts' weights; needs config_keep_stream; Inkling. */
    bool ffn_scale;
    bool stream_scale; /* a layer's factor multiplies the stream after its FFN; needs config_keep_stream; Gemma 4 */

    int dense_inter;                                     /* of dense layers */
    bool dense_bias;                                     /* of gate, up and down in dense layers */
    int n_experts, topk, n_group, topk_group, moe_inter; /* n_experts 0: a dense model */
    int shared_inter;                                    /* all shared experts together; 0: none */
    /* width of the routed experts' inputs and outputs, which two matrices project; 0: hidden */
    int moe_latent;
    /* With moe_latent: an expert's output has factors per channel and is normed before it is weighted; Muse Spark. */
    bool expert_out_norm;
    /* With moe_latent: the sum of a token's experts is normed before it is projected, so its parts are added in
     * latent space; Kimi K3. */
    bool routed_sum_norm;
    float shared_scale; /* factor of the shared experts' output; 0: 1. Not with shared_gate */
    bool shared_gate, router_bias, group_top2, norm_topk;
    /* With shared_gate, which then has two rows and a bias: their softmax weighs the routed experts' sum and the
     * shared experts; Klear. */
    bool mixes_shared;
    bool expert_scale; /* each expert has a factor of its weight, after normalization */
    bool group_each;   /* each group's topk / n_group best experts are chosen */
    bool group_zero;   /* experts outside the chosen groups have choice 0 instead of none */
    bool router_shift; /* bias of the router's logits; router_bias affects the selection only */
    bool expert_bias;  /* gpt-oss */
    struct glu glu;    /* the activation in every FFN */
    bool no_up;        /* FFNs have one matrix before the activation: glu.is_relu, glu.is_ungated or learned_xielu */
    /* the numbers of xIELU in dense FFNs are tensors (layer.xielu); Apertus */
    bool learned_xielu;
    uint8_t score;                     /* enum score_fn */
    float routed_scale, router_jitter; /* router_jitter: Phi-3.5-MoE */
    /* The weight of the one chosen expert multiplies its input instead of its output; needs topk 1; Llama 4. */
    bool weighs_input;
    /* The last experts, which every token chooses: shared experts inside the router's normalization; Inkling. */
    int n_always;
    bool sees_whole_images; /* in layers with a window a token of an image sees all of the image (Gemma 4) */
    uint8_t reads_early;    /* enum reads_early; work.kept has the stream before attention */
    int n_idle_experts;     /* experts after the others that return their input; the router chooses among all */
    /* Width of the router's MLP, which continues the previous layer's; 0: the router is one matrix; ZAYA1. */
    int router_inter;
    /* floats per token that layers pass to later ones (work.carried): router_inter; or the embedding, if token_dim, and
     * keys and values */
    int carried;
    /* Width of vectors per token and layer that multiply a gate of the stream after each layer (struct token_input);
     * needs config_keep_stream. 0: none; Gemma 4. */
    int token_dim;
    float router_cap;   /* logits become cap * tanh(logits / cap); 0: not */
    float router_scale; /* factor of the logits; 0: 1 */

    struct quant_config {     /* integer weights, as far as their tensors leave it open */
        uint8_t method;       /* enum quant_method */
        int bits, group;      /* per code; columns per scale, 0: a whole row or unknown */
        bool zeros_minus_one; /* GPTQ stores zero points minus one */
        bool zeros_are_half;  /* zero points are half of the codes' range, whatever is stored */
        bool fp8_activations; /* trained with activations in E4M3, scaled by token and 128 columns (DeepSeek-V3) */
    } quant;
    int block_rows, block_cols; /* FP8 scale block; 128 unless quantization_config differs */
    struct ngram_config {       /* embeddings of hashed n-grams, added to the streams before some layers (op_ngram) */
        /* dim: of all hashes together; taps: of the convolution, whose rows are `size` apart; 1: none */
        int size, per, dim, taps;
        int rows, parts; /* rows of a table; number of tensors that hold it in the checkpoint */
        uint64_t multiplier[NGRAM_MOST];
        uint32_t vocab[NGRAM_HASHES_MOST], offset[NGRAM_HASHES_MOST];
    } ngram[CONFIG_NGRAMS_MOST];
    /* the token at which n-grams end; with ngram_numbers, once weights are open, the number of the token that precedes
     * a text */
    int ngram_end;
    /* n-grams are of numbers that like tokens share (tokenizer_number_alike), of which there are this many; they end at
     * the beginning of a text only. 0: of tokens */
    int ngram_numbers;
    /* Embeddings of hashed n-grams that are averaged with the token's (block_embed_ngrams), ending at ngram_end. Hash k
     * of the n-gram of `length` tokens has a table of rows[k] rows: the sum of token * radix^i, the latest token's i 0,
     * modulo rows[k]. Tokens before the text and before an end count as 0. */
    struct input_ngrams {
        /* the longest n-gram, 0: no such embeddings; hashes of each length; columns of each table */
        int size, per, dim, radix;
        int rows[NGRAM_HASHES_MOST];
    } input_ngrams;
    int n_mtp; /* MTP layers after the last layer, not part of the main model */
    int bos, n_eos, eos[CONFIG_MAX_EOS];
};
/* Whether the shared expert of a layer reads other numbers than the router and the routed experts (work.ffn_in instead
 * of work.xn). */
static inline bool config_has_ffn_in(const struct config *c, int layer) {
    return c->layer[layer].moe && (c->weighs_input || c->layer[layer].routes_kept || c->reads_early == EARLY_ROUTED);
}
static inline bool config_needs_ffn_in(const struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (config_has_ffn_in(c, i)) return true;
    return false;
}
static inline bool config_has_mixer(const struct config *c, enum mixer kind) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].mixer == kind) return true;
    return false;
}
/* Whether the norm before a layer's attention, or before its FFN, has a gate: all, or all but that of a dense FFN. */
static inline bool config_norm_is_gated(const struct config *c, int layer, bool ffn) {
    return c->norm_gate_rank && (!ffn || c->gates_all_norms || c->layer[layer].moe);
}
/* Whether a layer has neither mixer nor FFN and only adds the output of the layer before. It is the last one of models
 * with short convolutions: its state is that of the output's convolution. */
static inline bool config_is_bare(const struct config *c, int layer) {
    return c->layer[layer].no_ffn && c->layer[layer].mixer == MIXER_NONE;
}
/* Whether a layer, or some layer, has a state instead of keys. */
static inline bool config_is_stateful(const struct config *c, int layer) {
    return c->layer[layer].mixer == MIXER_NONE ? config_is_bare(c, layer) : c->layer[layer].mixer != MIXER_ATTENTION;
}
static inline bool config_has_states(const struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (config_is_stateful(c, i)) return true;
    return false;
}
/* The n-gram embedding before a layer; NULL: none. */
static inline const struct ngram_config *config_ngram(const struct config *c, int layer) {
    return c->layer[layer].ngram ? &c->ngram[c->layer[layer].ngram - 1] : NULL;
}
static inline int config_input_hashes(const struct config *c) {
    return c->input_ngrams.size ? (c->input_ngrams.size - 1) * c->input_ngrams.per : 0;
}
/* Tokens before a row that its embedding depends on, or those of n-grams before layers. */
static inline int config_lookback(const struct config *c) {
    int most = c->input_ngrams.size;
    for (int i = 0; i < CONFIG_NGRAMS_MOST; i++) most = c->ngram[i].size > most ? c->ngram[i].size : most;
    return most ? most - 1 : 0;
}
/* The same for the row at position pos: fewer at the start of a text. */
static inline int config_lookback_at(const struct config *c, int pos) {
    return pos < config_lookback(c) ? pos : config_lookback(c);
}
/* Numbers per token of the embeddings of n-grams of layers, all after one another; where those of a layer begin. */
static inline int config_ngram_floats(const struct config *c) {
    int sum = 0;
    for (int i = 0; i < CONFIG_NGRAMS_MOST; i++) sum += c->ngram[i].dim;
    return sum;
}
static inline int config_ngram_at(const struct config *c, int layer) {
    int sum = 0;
    for (int i = 0; i + 1 < c->layer[layer].ngram; i++) sum += c->ngram[i].dim;
    return sum;
}
static inline int config_ngram_hashes(const struct ngram_config *g) { return (g->size - 1) * g->per; }
/* with zeros between the published ones */
static inline int config_ngram_taps(const struct ngram_config *g) { return (g->taps - 1) * g->size + 1; }
/* Whether some layer is a mixer only, or an FFN only. */
static inline bool config_has_single_blocks(const struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].no_ffn != (c->layer[i].mixer == MIXER_NONE)) return true;
    return false;
}
/* The layer of the checkpoint whose tensors a layer has. */
static inline int config_stored_layer(const struct config *c, int layer) {
    return layer >= 0 && layer < c->n_layers ? layer - c->layer[layer].repeats : layer;
}
static inline float config_output_eps(const struct config *c) {
    return c->output_eps > 0 ? c->output_eps : c->norm_eps;
}
/* Width of the routed experts' inputs and outputs. */
static inline int config_routed_width(const struct config *c) { return c->moe_latent ? c->moe_latent : c->hidden; }
/* Width of buffers that hold rows of the stream or of routed experts. */
static inline int config_row_width(const struct config *c) {
    return c->moe_latent > c->hidden ? c->moe_latent : c->hidden;
}
/* Number of a router's logits per token. */
static inline int config_n_choices(const struct config *c) { return c->n_experts + c->n_idle_experts; }
/* Whether a layer keeps rows in work.kept, for its FFN or for the next layer. */
static inline bool config_keeps_rows(const struct config *c) {
    if (c->parallel_dense || c->reads_early) return true;
    for (int i = 0; i < c->n_layers; i++)
        if (c->layer[i].keeps_input) return true;
    return false;
}
/* Whether the shared experts' output has a weight per row (work.shared_weight). */
static inline bool config_weighs_shared(const struct config *c) { return c->shared_gate || c->shared_scale > 0; }
/* Keeps the residual stream apart from the output of the current block, so that the output can be normed, and the FFN
 * can read what attention read. */
static inline void config_keep_stream(struct config *c) {
    c->streams = (struct residual_streams){.n = 1, .is_plain = true};
}
static inline int config_heads(const struct config *c, int layer) {
    return c->layer[layer].n_heads ? c->layer[layer].n_heads : c->n_heads;
}
static inline int config_dense_inter(const struct config *c, int layer) {
    return c->layer[layer].dense_inter ? c->layer[layer].dense_inter : c->dense_inter;
}
static inline int config_kv_heads(const struct config *c, int layer) {
    return c->layer[layer].n_kv_heads ? c->layer[layer].n_kv_heads : c->n_kv_heads;
}
static inline int config_head_dim(const struct config *c, int layer) {
    return c->layer[layer].head_dim ? c->layer[layer].head_dim : c->head_dim;
}
static inline int config_v_dim(const struct config *c, int layer) {
    const struct layer_config *l = &c->layer[layer];
    return l->v_dim ? l->v_dim : l->head_dim ? l->head_dim : c->v_dim;
}
/* The sizes of a layer's MLA; heads: config_heads, dim: config_head_dim, v_dim: config_v_dim. */
struct mla_sizes {
    int heads, dim, v_dim, q_lora, kv_lora, nope, rope;
    int latent; /* kv_lora + rope */
};
static inline struct mla_sizes config_mla(const struct config *c, int layer) {
    const struct layer_config *l = &c->layer[layer];
    const int kv_lora = l->kv_lora ? l->kv_lora : c->kv_lora, rope = l->no_qk_rope ? 0
                                                                     : l->qk_rope  ? l->qk_rope
                                                                                   : c->qk_rope;
    return (struct mla_sizes){.heads = config_heads(c, layer),
                              .dim = config_head_dim(c, layer),
                              .v_dim = config_v_dim(c, layer),
                              .q_lora = l->q_lora ? l->q_lora : c->q_lora,
                              .kv_lora = kv_lora,
                              .nope = l->qk_nope ? l->qk_nope : c->qk_nope,
                              .rope = rope,
                              .latent = kv_lora + rope};
}
static inline float config_attn_scale(const struct config *c, int layer) {
    return c->layer[layer].attn_scale > 0 ? c->layer[layer].attn_scale : c->attn_scale;
}
/* The activation of a layer's routed experts, or of its shared expert or dense FFN. */
static inline struct glu config_glu(const struct config *c, int layer, bool routed) {
    struct glu g = c->glu;
    if (c->layer[layer].glu_limit[!routed] > 0) g.limit = c->layer[layer].glu_limit[!routed];
    return g;
}
enum quant_method {
    QUANT_NONE,
    QUANT_FLOAT,
    QUANT_COMPRESSED,
    QUANT_MODELOPT,
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_W4AFP8,
    QUANT_BITSANDBYTES,
    QUANT_MLX
};

/* Whether the softmax of GQA has a term per query that is computed apart (work.sink_logits). */
static inline bool config_computes_sinks(const struct config *c) { return c->projects_sinks || c->sink_keys; }
/* Whether a layer's values come from value experts. */
static inline bool config_mixes_values(const struct config *c, int layer) {
    return c->n_value_experts && c->layer[layer].moe && c->layer[layer].mixer == MIXER_ATTENTION;
}
/* Whether a GQA layer sees selected blocks of keys. */
static inline bool config_selects_blocks(const struct config *c, int layer) {
    return c->attn == ATTN_GQA && c->index_block && c->layer[layer].mixer == MIXER_ATTENTION &&
           c->layer[layer].index != INDEX_NONE;
}
/* Whether a layer sees keys that an indexer selects, and whether an earlier layer's does. */
static inline bool config_selects_entries(const struct config *c, int layer) {
    return c->attn == ATTN_COMPRESSED &&
           (c->layer[layer].overlap || (c->layer[layer].ratio > 0 && c->index_from_entries));
}
static inline bool config_reuses_selection(const struct config *c, int layer) {
    return (c->attn == ATTN_DSA || config_selects_entries(c, layer)) && c->layer[layer].index == INDEX_PREVIOUS;
}
/* Lists of a query's selected keys or blocks, and their entries together. */
static inline int config_index_lists(const struct config *c) { return c->index_by_group ? c->index_heads : 1; }
static inline int config_index_entries(const struct config *c) { return config_index_lists(c) * c->index_topk; }
/* Indexers select keys by the results of all earlier products. Such models keep 16 bits of an activation, so that
 * rounding does not change the selection. */
static inline bool config_needs_wide_activations(const struct config *c) { return c->index_topk > 0; }
/* Returns whether a device may read prompts with products in FP8: the model was trained with such activations, and none
 * of its choices of keys depends on their last digits. */
static inline bool config_reads_in_fp8(const struct config *c) {
    return c->quant.fp8_activations && !config_needs_wide_activations(c);
}

/* Returns whether a sequence of n tokens rotates its keys differently from a short one; then cached keys of a shorter
 * one cannot be reused. */
static inline bool config_long_rope(const struct config *c, int n) {
    return c->rope.kind == ROPE_LONG && n > (int)c->rope.original_max;
}
