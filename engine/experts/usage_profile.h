#pragma once
/* Counts how often prompts select each routed expert, and persists all selections of a run in one small file per
 * checkpoint, so that the next run starts with the experts in its pools that are used most. The file is untrusted: a
 * damaged one is ignored with a warning and removed. Does not decide what is resident (expert_pool.h). One thread.
 *
 * Pinned, the counts that choose are frozen for the life of the process, and the file that they come from is left as it
 * is, so that a later run with the same file chooses the same experts. */
#include "engine/model/config.h"

struct usage_profile {
    const struct config *c;
    char *path; /* owned; NULL: nothing is read or written */
    uint64_t fingerprint;
    uint32_t *before;  /* [n_layers, n_experts] selections of earlier runs, as read */
    uint32_t *prompts; /* [n_layers, n_experts] selections of this run's prompts */
    uint32_t *pinned;  /* owned, [n_layers, n_experts] the counts when they were pinned; NULL: they are not */
    bool is_kept;      /* pinned from the file */
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
/* Pins the counts of earlier runs; without any, those of this run's prompts so far. The file stays as it is if it has
 * at least `settled` tokens. True: pinned now or before. False: there are no counts yet, or no memory. */
bool usage_profile_pin(struct usage_profile *u, int settled);
/* Fills out [n] with the experts of a layer that were used most when the counts were pinned, in rising order; of
 * experts used as often the first ones. n: at most n_experts. */
void usage_profile_pinned(const struct usage_profile *u, int layer, int n, int32_t *out);
/* The share of a layer's choices that the n most used experts had in earlier runs, or when the counts were pinned. Each
 * choice is judged by the others, so that few of them do not seem to repeat; not less than by chance. < 0: there are no
 * counts. u may be NULL.
 */
double usage_profile_pinned_share(const struct usage_profile *u, int layer, int n);
/* Whether the file must stay as it is, because experts were pinned by it. */
static inline bool usage_profile_is_kept(const struct usage_profile *u) { return u->is_kept; }
/* Writes the counts: half of those before, the prompts', and decoded [n_layers, n_experts]. A run of few tokens is not
 * written. ERR_RUNTIME. */
int usage_profile_save(const struct usage_profile *u, const uint32_t *decoded, struct error *e);
