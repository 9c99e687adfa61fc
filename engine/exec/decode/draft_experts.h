#pragma once
/* Routed experts of the draft (decode.draft) on devices. */
#include "engine/exec/decode/decode_state.h"

/* one more layer if it fits; returns a device's failure */
int draft_experts_load(struct decode_device *d, struct error *e);
/* evicts one layer and loads no more; false: there is none */
bool draft_experts_evict_layer(struct decode_device *d);
void draft_experts_close(struct decode_device *d);
