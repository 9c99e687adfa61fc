#pragma once
#include "engine/session/engine_state.h"

int generation_config_read(struct engine *eng, struct error *e); /* stop ids and the vendor's sampling defaults */
