#pragma once
/* Input: stdin and files as text and documents for the model. */
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"
#include "cli/turn/image_files.h"

enum { INPUT_MAX = 1 << 30 };
/* Reads all of stdin. ERR_RUNTIME past INPUT_MAX bytes or on a read error. */
int input_stdin(struct buf *out, struct error *e);
/* Reads a file, stdin for "-", or an embedded file. */
int input_file(const char *path, struct buf *out, struct error *e);

/* Appends raw bytes as text for the model: without a byte order mark, as valid UTF-8, with a note if bytes were
 * replaced. Refuses what is clearly not text, since a model would answer with nonsense. what names the input in
 * messages. */
int input_clean_text(const char *what, const struct buf *raw, struct buf *out, struct error *e);
/* Refuses what is not text: known formats, many invalid UTF-8 sequences, and NUL bytes, of which may_have_nuls allows a
 * few, as pipes carry between names. ERR_RUNTIME. */
int input_check_text(const char *path, const struct buf *raw, bool may_have_nuls, struct error *e);

struct input_path {
    char *path; /* "-": stdin */
    char *name; /* as the model reads it: the last component, or the path below a given directory */
};
/* Appends one document, wrapped in a tag with its name, or adds an image to `images`, at the end of out. *bytes (may be
 * NULL) is the size of the file. */
int input_document(const struct input_path *f, struct buf *out, struct image_files *images, size_t *bytes,
                   struct error *e);
