#pragma once
/* A model that came as GGUF: its metadata told as the config.json of its family, so that one parser reads both, and the names
 * that llama.cpp gives to tensors, which are the same for all families. */
#include "engine/model/arch.h"

/* What the tensors say and the metadata leaves out. */
struct gguf_factors { /* of rotary frequencies, one for each pair; v NULL: none */
    const float *v;
    uint32_t n;
};
struct gguf_facts {
    int64_t vocab;    /* rows of the embedding */
    bool tied;        /* no output head */
    bool router_bias; /* the router's choice is corrected */
    bool split_kv_b;  /* MLA's up-projection as two tensors */
    bool qkv_bias, qk_norm, head_bias;
    bool gate_up;                         /* gate and up of all experts in one tensor */
    bool qkv, delta_in;                   /* q, k and v in one; of DeltaNet all inputs but b and a in one */
    struct gguf_factors freqs, near, far; /* of all sequences; of those not longer than the original context, and of longer ones */
};
/* In the arena; it points into meta. A key that may change the computation and is not known keeps its name, so that config_parse
 * refuses it. ERR_MODEL names file and key. */
int gguf_config(struct arena *a, const struct json *meta, const struct gguf_facts *f, const char *what, struct json *config, struct error *e);
/* What such a file calls the tensors of c, which came from it, how they hold what they hold, and what was worked out before they
 * were written. In the arena. ERR_MEMORY. */
int gguf_names(struct config *c, struct arena *a, const struct json *meta, const struct gguf_facts *f, struct error *e);
/* "qwen3moe, ..." for messages */
void gguf_list(char *buf, size_t cap);
