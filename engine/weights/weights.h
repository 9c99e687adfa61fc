#pragma once
/* A checkpoint as the layers use it: each weight is a typed view of the mapped files, small vectors are float32 copies.
 * Read-only after opening, shared by all threads. */
#include "engine/model/gguf_config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/params.h"

/* MTP layer after the last layer: predicts the token after next from the last layer's output and the next token
 * (DeepSeek-V3, section 2.2). It shares the model's embedding and, if it has none of its own, the head. */
struct mtp_weights {
    bool is_present;
    struct layer layer;          /* config.layer[n_layers] */
    struct mat eh;               /* [hidden, 2 * hidden]: of the token's embedding, then of the last layer's output */
    struct mat head;             /* [vocab, hidden] */
    float *enorm, *hnorm, *norm; /* [hidden] norms of the embedding, of the last layer's output, and before the head */
};

struct weights_slab {
    uint8_t *at; /* whole pages */
    size_t bytes, used;
};
struct weights {
    struct config config;
    struct checkpoint files;
    struct arena arena;
    struct mat embed, head;
    struct mat ngram_table[NGRAM_HASHES_MOST];      /* config.input_ngrams: [rows of the hash, dim] */
    struct mat ngram_projection[NGRAM_HASHES_MOST]; /* [hidden, dim] */
    float *embed_norm;                              /* [hidden] */
    float *norm;                                    /* [hidden] */
    /* gates_all_norms: of norm and last_out_norm, as struct layer's attn_norm_gate */
    struct mat norm_gate[2], last_out_gate[2];
    float *norm_bias; /* [hidden] */
    struct stream_mix head_mix;
    struct gated_mix head_gated;
    float *head_pool; /* [hidden] query of op_pool */
    struct stream_merge last_merge;
    float *last_out_norm; /* [hidden] norm of the last layer's FFN output */
    struct token_input last_token_input;
    float *last_experts_norm, *last_scale; /* as struct layer's previous_.. */
    float *head_bias;                      /* [vocab] */
    struct layer *layers;                  /* [n_layers] */
    struct mtp_weights prediction;
    float *inv_freq;      /* [rope_floats] */
    int32_t *ngram_ids;   /* [vocab] or NULL (config.ngram_numbers) */
    float *rope_alpha;    /* [rope.dim / 2], or NULL */
    float *fope[2];       /* FoPE's coefficients of cos and of sin (rope_fill_fope) */
    float rope_mscale[2]; /* factors of cos and sin: rope, second_rope */
    /* For --inspect: bytes by kind; bytes of unused tensors. */
    size_t bytes_routed, bytes_dense, bytes_embed, bytes_skipped;
    /* memory of repacked matrices and scales; bytes of the tensors that they replace */
    size_t bytes_repacked, bytes_replaced;
    struct weights_slab *slabs; /* [n_slabs] memory of the repacked ones */
    size_t n_slabs, cap_slabs;
    bool is_expanded; /* some matrices were expanded to float32 */
    size_t n_skipped, n_mtp_tensors;
    struct gguf_sampling sampling; /* of a GGUF file */
    size_t *largest_expert;        /* [n_layers] results of weights_largest_expert(), in shape_only.c; otherwise NULL */
};

/* Returns memory for a repacked matrix, which weights_close() frees. NULL: out of memory. While loading only. */
void *weights_alloc_repacked(struct weights *w, size_t size);
/* Returns the number of ranges of memory that have weights: mapped files, then slabs. */
int weights_ranges(const struct weights *w);
/* The i-th range; 0 bytes: a file in the executable, or one whose matrices were mostly replaced by repacked ones. */
struct weights_range {
    const uint8_t *at;
    size_t bytes;
    bool is_file;
} weights_range(const struct weights *w, int i);
/* Whether the range is within a table of n-grams, whose rows only the CPU reads. */
bool weights_is_ngram_table(const struct weights *w, const uint8_t *at, size_t bytes);
void weights_close(struct weights *w);
/* Reads every byte of the tensors and looks for NaN and infinities in weights and scales. ERR_MODEL names the file, and
 * the first tensor, row and column. The callback gets the fraction done, 0..1; a non-zero return cancels. */
int weights_verify(const struct checkpoint *f, int (*progress)(void *ctx, double share), void *ctx, struct error *e);
/* Bytes of the files that answers read throughout: without unused tensors, and without tables of n-grams, of which a
 * token reads a few rows. */
size_t weights_needed_bytes(const struct weights *w);
/* Bytes of routed experts, dense weights and head that one token reads; multiply-adds in matrices, without the head. */
size_t weights_token_bytes(const struct weights *w);
/* one routed expert, the mean if they differ; 0: none */
size_t weights_expert_bytes(const struct weights *w);
/* two experts of a layer: their tensors have the same bytes */
bool weights_experts_alike(const struct expert *a, const struct expert *b);
/* bytes of the largest routed expert of a layer; 0: none */
size_t weights_largest_expert(const struct weights *w, int layer);
uint64_t weights_token_flops(const struct weights *w);
/* Formats of the last output projection, and of the last layer's experts or FFN; DT_BF16 if no layer has any. */
enum dtype weights_dense_dtype(const struct weights *w);
enum dtype weights_ffn_dtype(const struct weights *w);
