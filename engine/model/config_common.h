#pragma once
/* Readers of config keys that many families use. */
#include "engine/model/config_read.h"

/* Reads rope_scaling / rope_parameters / rope_theta / partial_rotary_factor into c->rope. dim: rotary dimensions unless
 * partial. */
void config_read_rope(struct config_reader *r, struct config *c, int dim, double theta);
/* reads rope from that object only */
void config_read_rope_object(struct config_reader *r, struct config *c, const char *key, int dim, double theta);
/* Reads standard attention: heads, KV heads, head_dim, max_position_embeddings, scale = head_dim^-0.5 */
void config_read_gqa(struct config_reader *r, struct config *c);
/* Reads what dense models have in common: standard attention, one FFN of intermediate_size per layer. hidden_size /
 * heads: default of head_dim. */
void config_read_dense(struct config_reader *r, struct config *c);
/* Reads FFNs without gate: one matrix before GELU, of the form that hidden_act names or, without it, `form`. For
 * families with own_activation. */
enum ungated { UNGATED_GELU, UNGATED_GELU_TANH };
void config_read_ungated(struct config_reader *r, struct config *c, enum ungated form);
/* Reads layer[i].window from layer_types; without it, every other one of the first `layers` layers gets `window` */
void config_read_windows(struct config_reader *r, struct config *c, int window, int layers);
/* Reads layer[i].mixer from the list `key`: `kind` where it says `name`, attention where it says `attention` */
void config_read_mixers(struct config_reader *r, struct config *c, const char *key, enum mixer kind, const char *name,
                        const char *attention);
/* Sets a GQA layer's numbers of heads */
void config_set_heads(struct config_reader *r, struct config *c, int layer, int64_t heads, int64_t kv_heads);
/* Reads rope_parameters with an object for full_attention (c->rope) and one for sliding_attention (c->second_rope, of
 * layers with a window); without them, one rotation for all layers. full, sliding: default theta */
void config_read_ropes(struct config_reader *r, struct config *c, double full, double sliding);
/* Reads layer[i].moe from mlp_layer_types, if present ("dense" or "sparse") */
void config_read_mlp_types(struct config_reader *r, struct config *c);
/* For the language model of a multimodal checkpoint: marks the keys of its other parts as read; c->tied if either
 * object ties */
void config_skip_vision(struct config_reader *r, struct config *c);
/* Reads layer[i].moe from mlp_only_layers and decoder_sparse_step (Qwen) */
void config_read_sparse_step(struct config_reader *r, struct config *c);
/* Returns the list `key`, which has an entry for each layer, or with `longer` at least that many. NULL: the key is
 * absent, or after an error. */
const struct json *config_layer_list(struct config_reader *r, const struct config *c, const char *key, bool longer);
/* Returns which of the options (NULL-terminated; config_is_layer_kind) a layer's entry of such a list is; 0 after an
 * error. */
int config_layer_choice(struct config_reader *r, const char *key, const struct json *list, int layer,
                        const char *const *options);
/* Whether an entry of such a list is this kind of layer, as published or under the name that transformers 5 saves. */
bool config_is_layer_kind(const struct json *v, const char *kind);
/* Refuses limits of Mamba's step, a list of two, other than [0, infinity]. */
void config_check_step_limit(struct config_reader *r, const char *key);
/* Reads a list of n_layers numbers or booleans from `key` into out; returns false if the key is absent, or after an
 * error. */
bool config_read_flags(struct config_reader *r, const struct config *c, const char *key, bool out[CONFIG_MAX_LAYERS]);
