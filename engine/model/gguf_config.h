#pragma once
/* Translates a GGUF model's metadata into its family's config.json, so that one parser reads both, and llama.cpp's
 * tensor names into struct tensor_names. */
#include "engine/model/gguf_facts.h"

/* Notes what a tensor says of the model and of its layer. rows: its first dimension. */
void gguf_note(struct gguf_facts *f, const char *name, int64_t rows);
/* Builds the config in the arena; it points into meta. Unknown keys that may change the computation keep their names,
 * so that config_parse refuses them. ERR_MODEL names file and key. */
int gguf_config(struct arena *a, const struct json *meta, const struct gguf_facts *f, const char *what,
                struct json *config, struct error *e);
/* Sets c's tensor names and layouts for a GGUF file, and the conversions already applied to its tensors. In the arena.
 * ERR_MEMORY. */
int gguf_names(struct config *c, struct arena *a, const struct json *meta, const struct gguf_facts *f, struct error *e);
/* The vendor's sampling defaults, which a file may hold (general.sampling.*). NAN, 0: not given, or no valid value. */
struct gguf_sampling {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k;
    bool is_given; /* one of them */
};
struct gguf_sampling gguf_read_sampling(const struct json *meta);
/* Appends llama.cpp's names of all architectures as "qwen3moe, ...". */
void gguf_list(struct buf *out);
