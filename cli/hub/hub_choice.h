#pragma once
/* Selects the files of a repository that hearth needs, and the quant that suits this machine. */
#include "cli/hub/hub_listing.h"
#include "cli/options/hub_name.h"

struct hub_set { /* files, each once */
    const struct hub_file **v;
    size_t n, cap;
};
int hub_choice_add(struct hub_set *s, const struct hub_file *f, struct error *e);
uint64_t hub_choice_bytes(const struct hub_set *s);

struct hub_quant { /* a GGUF file, or a set of parts */
    char label[HUB_QUANT_MAX];
    const struct hub_file *first;
    int n_parts;
    uint64_t bytes;               /* sum over the parts; the tower is not included */
    const struct hub_file *tower; /* the file of its vision tower; NULL: the repository has none */
    char missing[300];            /* name of a part that is not listed; "": complete */
};
struct hub_quants {
    struct hub_quant *v; /* [n], smallest first */
    size_t n, cap;
};
int hub_choice_quants(const struct hub_listing *l, struct hub_quants *out, struct error *e);
/* Finds the quant that a label names. ERR_RUNTIME: there is none, several begin so, or parts of it are missing. */
int hub_choice_find(const struct hub_listing *l, const struct hub_quants *q, const char *wanted, size_t *at,
                    struct error *e);
/* The bytes of all files of a quant. */
uint64_t hub_choice_quant_bytes(const struct hub_quant *q);
/* Writes the path of a quant's tower within a snapshot: in the folder of the first part, where the engine looks. */
void hub_choice_tower_path(const struct hub_quant *q, char *out, size_t cap);
/* Adds the files of a quant: its parts, then its tower. */
int hub_choice_add_quant(const struct hub_listing *l, const struct hub_quant *q, struct hub_set *s, struct error *e);
/* Selects the largest quant that fits `memory` bytes with room to spare and decodes FAST tokens per second at `rate`
 * bytes per second when a token reads `share` of the weights (0: unknown). If none is so fast, the largest up to
 * Q4_K_M's size that fits; if none fits, the smallest. Formats of 16 and 32 bits count only without others. */
size_t hub_choice_propose(const struct hub_quants *q, uint64_t memory, double rate, double share);
bool hub_choice_fits(uint64_t bytes, uint64_t memory);

/* Whether the repository has a checkpoint of safetensors files at its top. */
bool hub_choice_has_tensors(const struct hub_listing *l);
/* Fails with the reason why a repository without GGUF files has no checkpoint of its own either. */
int hub_choice_fail(const struct hub_listing *l, struct error *e);
/* Add the files of it: settings, which the shards are found by (config and index); tokenizer and template; weights, by
 * the index, NULL without one. ERR_RUNTIME: the index is invalid or names files that are not listed. */
int hub_choice_add_settings(const struct hub_listing *l, struct hub_set *s, const struct hub_file **index,
                            struct error *e);
int hub_choice_add_texts(const struct hub_listing *l, struct hub_set *s, struct error *e);
int hub_choice_add_shards(const struct hub_listing *l, const char *index, size_t n, struct hub_set *s, struct error *e);
