#pragma once
/* The images of a message: files as they are, each at a place in the message's text. */
#include "base/buf.h"
#include "base/error.h"

struct image_file {
    size_t at;        /* byte of the text that follows it */
    char *name;       /* as messages call it */
    struct buf bytes; /* of the file: PNG, JPEG or WebP */
};
struct image_files { /* in order of `at`; empty when zero-initialised */
    struct image_file *v;
    size_t n, cap;
};
/* Appends a copy. ERR_MEMORY. */
int image_files_add(struct image_files *l, size_t at, const char *name, const void *bytes, size_t n);
/* Appends copies of those of `from`, whose text then begins at byte `at`. ERR_MEMORY: l is unchanged. */
int image_files_copy(struct image_files *l, const struct image_files *from, size_t at);
void image_files_remove(struct image_files *l, size_t i);
void image_files_truncate(struct image_files *l, size_t n);
void image_files_free(struct image_files *l);

/* Appends a content with text and images as a list of parts: `image` with its bytes as base64 in `data`, for this
 * process (prompt_images.h); or, is_request, image_url with a data: URL, as OpenAI's API has it. */
void image_files_put_parts(const struct image_files *l, const struct buf *text, bool is_request, struct buf *out);
/* Appends the list as a saved conversation has it: objects with at, name and data. */
void image_files_put_saved(const struct image_files *l, struct buf *out);
struct json;
/* Reads that. ERR_MODEL: malformed; ERR_MEMORY. */
int image_files_read(struct image_files *l, const struct json *list, size_t text_bytes);
