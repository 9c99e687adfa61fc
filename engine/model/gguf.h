#pragma once
/* A model that came as GGUF: its metadata told as the config.json of its family, so that one parser reads both, and the names
 * that llama.cpp gives to tensors, which are the same for all families. */
#include "engine/model/arch.h"

/* What the tensors say and the metadata leaves out. */
struct gguf_facts {
    int64_t vocab;    /* rows of the embedding */
    bool tied;        /* no output head */
    bool router_bias; /* the router's choice is corrected */
    bool split_kv_b;  /* MLA's up-projection as two tensors */
    bool qkv_bias, qk_norm;
};
/* In the arena; it points into meta. A key that may change the computation and is not known keeps its name, so that config_parse
 * refuses it. ERR_MODEL names file and key. */
int gguf_config(struct arena *a, const struct json *meta, const struct gguf_facts *f, const char *what, struct json *config, struct error *e);
/* What such a file calls the tensors of c, which came from it, and how they hold what they hold. */
void gguf_names(struct config *c, const struct json *meta);
/* "qwen3moe, ..." for messages */
void gguf_list(char *buf, size_t cap);
