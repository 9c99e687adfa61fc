#pragma once
/* Reads config.json's quantization_config. */
#include "engine/model/config_read.h"

/* Fills c->quant, c->block_rows and c->block_cols. A method, format or scheme that hearth does not compute with is
 * refused by name; lists of modules are not read, because each tensor's dtype and shape tell how it is stored. */
void quantization_read(struct config_reader *r, struct config *c);
