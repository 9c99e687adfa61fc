#pragma once
/* Shared by Granite's families. */
#include "engine/model/config_common.h"
#include "engine/model/config_read.h"

/* Reads the factors of scores, embeddings, residual stream and logits. */
void granite_read_factors(struct config_reader *r, struct config *c);
/* Reads windows, sinks, and the base of each layer's rotation, after config_read_rope(). */
void granite_read_swa(struct config_reader *r, struct config *c);
