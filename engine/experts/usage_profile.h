#pragma once
/* Counts how often prompts select each routed expert, and persists all selections of a run in one small file per
 * checkpoint, so that the next run starts with the experts in its pools that are used most. The file is untrusted: a
 * damaged one is ignored with a warning and removed. Does not decide what is resident (expert_pool.h). One thread. */
#include "engine/model/config.h"

struct usage_profile {
    const struct config *c;
    char *path; /* owned; NULL: nothing is read or written */
    uint64_t fingerprint;
    uint32_t *before;  /* [n_layers, n_experts] selections of earlier runs, as read */
    uint32_t *prompts; /* [n_layers, n_experts] selections of this run's prompts */
};
/* Reads the file in dir (NULL: no file) for a checkpoint with this fingerprint; a missing file is not an error.
 * ERR_MEMORY. */
int usage_profile_open(struct usage_profile **u, const struct config *c, const char *dir, uint64_t fingerprint,
                       struct error *e);
void usage_profile_close(struct usage_profile **u);
/* Adds selections of prompt rows: ids [n], -1: skip; or `rows` selections of one expert. u NULL: no effect. */
void usage_profile_count(struct usage_profile *u, int layer, const int32_t *ids, int n);
void usage_profile_add(struct usage_profile *u, int layer, int expert, uint32_t rows);
/* Fills share [n_experts] with the experts' shares of a layer's selections: the mean of those before and those of this
 * run's prompts, of which one may be missing. False: there are none. */
bool usage_profile_shares(const struct usage_profile *u, int layer, float *share);
/* Writes the counts: half of those before, the prompts', and decoded [n_layers, n_experts]. A run of few tokens is not
 * written. ERR_RUNTIME. */
int usage_profile_save(const struct usage_profile *u, const uint32_t *decoded, struct error *e);
