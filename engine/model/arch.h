#pragma once
/* A model family: how its config.json is read and what its tensors are called. A new family is one file here and one row
 * in arch.c. */
#include "engine/model/config.h"

/* Names without the ending .weight / .bias / scale. %d: layer, then expert. NULL: the family has no such tensor. */
struct tensor_names {
    const char *embed, *norm, *head;
    const char *attn_norm, *ffn_norm;
    const char *q, *k, *v, *o, *q_norm, *k_norm;                /* GQA; q and o also MLA */
    const char *q_a, *q_a_norm, *q_b, *kv_a, *kv_a_norm, *kv_b; /* MLA */
    const char *router, *router_bias;                           /* router_bias is a whole name */
    const char *expert_gate, *expert_up, *expert_down;
    const char *shared_gate_proj, *shared_up, *shared_down, *shared_gate; /* shared_gate: [1, hidden] */
    const char *dense_gate, *dense_up, *dense_down;
};

struct arch {
    const char *const *model_types; /* NULL-terminated */
    const char *title;              /* for --inspect: "DeepSeek-V3" */
    void (*parse)(struct config_reader *r, struct config *c);
    struct tensor_names names;
};

const struct arch *arch_find(const struct json *model_type); /* NULL: unknown */
/* "deepseek_v3, kimi_k2, ..." of all families, for messages */
void arch_list(char *buf, size_t cap);

extern const struct arch arch_deepseek_v3, arch_deepseek_v2, arch_qwen3_moe, arch_mixtral, arch_qwen2_moe;
