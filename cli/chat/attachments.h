#pragma once
/* Documents for the next question. */
#include "cli/chat/chat.h"

/* Attaches the files that words name (input_paths_add_words). On error all are left out; ERR_CONTEXT: they do not
 * fit. */
int attachments_add(struct app *a, struct chat_session *t, const char *words, struct error *e);
/* Appends the documents, and the images, which `images` keeps the places of. ERR_MEMORY. */
int attachments_put(const struct attachments *l, struct buf *out, struct image_files *images);
size_t attachments_bytes(const struct attachments *l); /* of their files */
/* Attaches the documents of a question again, which is taken back. Returns how many they are, -1 without memory. */
int attachments_restore(struct attachments *l, const struct message *question);
/* Removes those of the first n that were read from the same path as a later one, or, of an undone question, have its
 * name. Returns how many these are. */
size_t attachments_drop_older(struct attachments *l, size_t n);
void attachments_remove(struct attachments *l, size_t i);
void attachments_truncate(struct attachments *l, size_t n); /* keeps the first n */
void attachments_free(struct attachments *l);
