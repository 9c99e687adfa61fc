#pragma once
/* Selects the attention kind of a layer. */
#include "engine/layer/attention.h"

const struct attention_kind *attention_of(const struct config *c, int layer);
