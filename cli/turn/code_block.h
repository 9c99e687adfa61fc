#pragma once
/* The fenced code blocks of an answer. Pure. */
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/* Finds the nth fenced code block (from 1), without its fence; an unfinished one extends to the end. False if there are
 * fewer. */
bool code_block_find(const struct buf *text, int nth, const char **begin, size_t *n);
