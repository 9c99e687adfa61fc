#pragma once
/* Attention blocks whose parts run on two executors: block_kv and block_query on one, which keeps the rows of a batch
 * only; block_attend on another, which has the caches; block_output on the first again. Pure. */
#include "engine/layer/work_open.h"

/* Whether a layer's attention block can be divided so. block_kv then stores rows in planes of its own with a row for
 * each token of the batch, and the other executor gets these rows and those of the buffers of block_attends(). */
bool block_attends_apart(const struct config *c, int layer);
/* Whether block_attend reads the workspace's buffer k of its rows. */
bool block_attends(const struct config *c, int layer, const struct work_row *k);
