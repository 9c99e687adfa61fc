#pragma once
/* Names of models on a hub: ORG/NAME, and ORG/NAME:QUANT for one of the GGUF files in a repository. */
#include <stdbool.h>
#include <stddef.h>

enum { HUB_NAME_MAX = 200, HUB_QUANT_MAX = 100 };

struct hub_name {
    char repo[HUB_NAME_MAX];   /* "ORG/NAME" */
    char quant[HUB_QUANT_MAX]; /* "Q4_K_M", as given; "": none */
};
/* Parses ORG/NAME[:QUANT]; false for any other text. A name is letters, digits, '.', '_' and '-', as the hub demands.
 */
bool hub_name_parse(const char *text, struct hub_name *out);

/* Writes the label of a GGUF file: its quant in capitals, as in "UD-Q4_K_XL", which its name ends with or its folder
 * has; without one the name itself. path is relative to the repository. */
void hub_name_label(const char *path, char *out, size_t cap);
/* Whether `wanted` means the file: 3 it is its label or its name, 2 its label without UD-, 1 a beginning of its label;
 * 0 no. Without regard to case. */
int hub_name_match(const char *path, const char *label, const char *wanted);
/* True for a GGUF file with weights of a model, or the first of a split set: no vision tower, no importance matrix. */
bool hub_name_is_weights(const char *path);
