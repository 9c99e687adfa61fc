#pragma once
#include "engine/session/engine_state.h"

struct policy_machine policy_machine_of(const struct engine *eng); /* the policy's view of the machine */
