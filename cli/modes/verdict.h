#pragma once
/* The main facts of an inspection (engine_inspect) in three lines: what the model is, whether it fits and how fast it
 * can be, and where it runs. */
#include "base/buf.h"
#include "base/json.h"

void verdict_put(struct buf *out, const struct json *root);
