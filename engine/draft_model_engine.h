#pragma once
/* A draft model (session/draft_model.h) as an engine of its own on the CPU. A conversation that it has not read is read
 * in the background first. Threads: ready() and run() belong to the main engine's thread; a lock orders them with
 * close_chat(). */
#include "engine/engine.h"
#include "engine/session/draft_model.h"

/* Opens the checkpoint `dir` with the threads, level, KV type and topology of the main engine's parameters. Errors are
 * engine_open()'s; *e names the option. */
int draft_model_engine_open(struct draft_model *out, const char *dir, const struct engine_params *p, struct error *e);
