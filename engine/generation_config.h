#pragma once
#include "engine/session/engine_state.h"

int generation_config_read(struct engine *e, struct error *err); /* stop ids and the vendor's sampling defaults */
