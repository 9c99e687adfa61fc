#pragma once
/* Weights in memory of our own choice: routed experts, shared and dense feed-forwards cut by memory node, the other
 * matrices with their rows spread over the nodes in order, all bound and in 2 MB pages on request. The copies are made in
 * the background, layer by layer; until a layer's are there, it is read from the mapping. Every cut is between rows, so the text
 * depends neither on the nodes nor on how far the copying is. What was copied is dropped from the mapping. */
#include "cpu/numa.h"
#include "engine/store/residency.h"
#include "engine/store/weights.h"

struct place;
/* copies false: nothing is copied, and layers are at once as the mapping has them, cut by node: for devices that read there, where pin.h puts pages on
 * their nodes. w and known must outlive it; known learns what was copied, and looked at on the way. One node without cuts: only the copy. Memory that
 * cannot be bound is used as it comes, with a warning. ERR_MEMORY, ERR_RUNTIME. */
int place_open(struct place **p, const struct weights *w, const struct numa *nodes, bool copies, bool huge, struct residency *known, struct error *e);
void place_close(struct place **p);       /* stops copying */
bool place_copies(const struct place *p); /* false for NULL */
/* A layer as it is to be computed with now; valid until close. p NULL: as it stands in w. */
const struct layer *place_layer(const struct place *p, const struct weights *w, int layer);
/* The same for what only the head needs. */
const struct weights *place_head(const struct place *p, const struct weights *w);
/* Whether weights of `bytes` are to be copied: they fit in what each node, and the machine now, can give. */
bool place_fits(const struct numa *nodes, size_t bytes, bool huge);
