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
