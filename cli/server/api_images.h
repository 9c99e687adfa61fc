#pragma once
/* Images in requests. Every protocol has its own form of them; the conversation for the chat template has parts of type
 * `image` with the file as base64 (cli/turn/prompt_images.h). Only images within the request are read: hearth fetches
 * no URL that a client names. */
#include "cli/server/api.h"

/* Makes the content of a message from parts: a text, as api_messages_join(), or with images a list of parts. Parts of
 * type image_url and input_image (OpenAI) and image (Anthropic) are images. */
int api_images_join(struct api_request *r, const struct json *parts, const char *types, const char *where,
                    struct json *out, struct error *e);
/* Makes the content of a message of Ollama's: the text, and images as a list of base64 texts. */
int api_images_beside(struct api_request *r, const struct json *text, const struct json *images, const char *where,
                      struct json *out, struct error *e);
bool api_images_is_part(const struct json *part); /* has one of these types */
