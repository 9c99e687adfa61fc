#pragma once
/* Prompt formats that vendors publish as code instead of a template. We wrote them as templates (deepseek_v32.jinja and
 * so on), which the build embeds. */
#include <stddef.h>

struct builtin_template {
    const char *model_type; /* of config.json */
    const char *file, *text;
    size_t n_text;
};
extern const struct builtin_template builtin_templates[]; /* ends with a NULL model_type */

/* Returns the template text, to search it for the markers of a model family. */
struct chat_template;
const char *chat_template_source(const struct chat_template *c, size_t *n);
