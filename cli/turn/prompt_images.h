#pragma once
/* The images of a prompt. A conversation in JSON has them as parts of a content: {"type": "image", "data": base64,
 * "name": text}. A chat template writes a placeholder for each, in place of which the prompt gets the image's ids. */
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

struct app;
struct json;

struct prompt_images { /* in order of their ids */
    struct request_image *v;
    size_t n, cap;
    int n_tokens; /* of all of them */
};
bool prompt_images_any(const struct json *conv); /* whether a conversation has images */
/* Opens the images of a conversation, in order: most of a second for one of 64 million pixels. may_go_on, if not NULL,
 * is called between two, on whose false the rest fails with ERR_CANCELLED. Any thread, but without an engine, which it
 * opens if there are any. ERR_USAGE: the model reads no images, or one is malformed; ERR_CONTEXT: more tokens than
 * the context; ERR_RUNTIME: a file that is damaged. */
int prompt_images_open(struct app *a, const struct json *conv, bool (*may_go_on)(void *ctx), void *ctx,
                       struct prompt_images *out, struct error *e);
/* Opens one more, from the bytes of a file. name: what messages call it. */
int prompt_images_add(struct app *a, const char *name, const struct buf *bytes, struct prompt_images *out,
                      struct error *e);
/* Replaces the placeholders among ids. ERR_USAGE: there are more or fewer than images. */
int prompt_images_place(const struct app *a, struct prompt_images *images, struct ids *ids, struct error *e);
void prompt_images_free(struct prompt_images *l);
