#pragma once
/* Prompt formats that vendors publish as code instead of a template. We wrote them as templates (deepseek_v32.jinja, deepseek_v4.jinja), which the build
 * embeds. */
#include <stddef.h>

struct chat_known {
    const char *model_type; /* of config.json */
    const char *file, *text;
    size_t n;
};
extern const struct chat_known chat_known[]; /* ends with a NULL model_type */

/* Returns the template text, to search it for the markers of a model family. */
struct chat;
const char *chat_source(const struct chat *c, size_t *n);
