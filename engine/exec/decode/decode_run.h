#pragma once
/* Runs batches (decode.h), and drops devices that fail. */
#include "engine/exec/decode/decode_state.h"

/* Drops all devices and continues on the CPU, for the reason `why`. ERR_MEMORY. */
int decode_fall_back(struct decode *s, const char *why, struct error *e);
