#pragma once
/* The weights of devices that hold layers: lists, uploads, removal. */
#include "engine/exec/decode/decode_state.h"

bool decode_weights_loaded(const struct decode *s);
int decode_weights_load(struct decode *s, struct error *e); /* uploads weights before the first batch that needs them */
void decode_weights_unload(struct decode *s);
/* Lists the weights of a whole layer (shard NULL), or of a rank's shard, whose config c is then. Returns the number of
 * ranges; view: the layer on the device. */
int decode_weights_layer_ranges(const struct weights *w, const struct config *c, const struct tp_shard *shard,
                                int layer, struct layer *view, struct copy_range *out);
/* Lists the final norm and LM head, or (MODULE_STREAM_MERGE) block_merge_streams's weights, which go with the last
 * layer. */
int decode_weights_end_ranges(const struct weights *w, enum module which, struct weights *view, struct copy_range *out);
