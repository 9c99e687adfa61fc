#pragma once
/* Opens the devices that hold layers: assigns layers, opens workspaces, host buffers and timelines. */
#include "engine/exec/decode/decode_state.h"

/* assigns layers to devices and opens them; loads no weights */
int decode_devices_open(struct decode *s, struct error *e);
void decode_devices_close(struct decode *s);
int decode_host_open(struct decode *s, struct error *e); /* host buffers, pinned if there are devices */
void decode_host_close(struct decode *s);
/* replaces them; nothing may wait for the old ones */
int decode_timelines_open(struct decode *s, struct error *e);
/* records the reason for the layer assignment and rebuilds s->placement_why */
void decode_set_placement_why(struct decode *s, const char *layers_why);
