#pragma once
/* Input: stdin, attached files, and the prompt built from them. */
#include <stddef.h>

#include "cli/app.h"
#include "engine/base/buf.h"

enum { INPUT_MAX = 1 << 30 };
/* Reads all of stdin. ERR_RUNTIME past INPUT_MAX bytes or on a read error. */
int input_stdin(struct buf *out, struct error *e);
/* Reads a file, stdin for "-", or an embedded file. */
int input_file(const char *path, struct buf *out, struct error *e);

/* Builds the user message of a one-shot run: attached files as documents, then stdin unless it is a terminal, then -p. Invalid UTF-8
 * is replaced, with a note. ERR_USAGE when all of it is empty. */
int input_prompt(struct app *a, struct buf *out, struct error *e);
/* Appends one document, wrapped in a tag with its name. */
int input_document(struct app *a, const char *path, struct buf *out, struct error *e);
