#pragma once
/* The user message of a one-shot run. */
#include "base/buf.h"
#include "cli/app.h"
#include "cli/turn/image_files.h"

/* Builds it from attached files as documents and images, then stdin unless it is a terminal, then -p. Invalid UTF-8 is
 * replaced, with a note. *n_document is the length of the documents at its beginning; without -p and files all of stdin
 * is one. ERR_USAGE without a question: all of the input is blank, or it has only files. */
int input_prompt(struct app *a, struct buf *out, size_t *n_document, struct image_files *images, struct error *e);
