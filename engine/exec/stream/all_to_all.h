#pragma once
#include "engine/exec/stream/exchange.h"

/* Standard expert parallelism instead, within an open exchange: every (token, expert) pair goes to the rank of its expert. Adds the experts' outputs to r->x,
 * or to r->routed_sum in a latent space. y: the layer's weights for experts_norm. *module: next module of the expert ring, advanced. */
int all_to_all_open(struct slp_rank *r, struct error *e); /* after exchange_open() */
void all_to_all_close(struct slp_rank *r);                /* before exchange_close(); without an exchange: nothing */
int all_to_all_experts(struct slp_rank *r, const struct layer *y, uint64_t *module, int layer);
