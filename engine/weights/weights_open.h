#pragma once
/* Opens a checkpoint: reads its config, chooses the layout of its tensors, and loads them (loader.h) into struct
 * weights. */
#include "engine/weights/weights.h"

/* Opens config.json and the weights of dir, or a GGUF file. ERR_MODEL names file, tensor and numbers. force: see
 * config_parse. */
int weights_open(struct weights *w, const char *dir, bool force, struct error *e);
