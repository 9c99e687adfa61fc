#pragma once
/* The model of a saved conversation: written with it, and opened again when it is continued. */
#include "base/json.h"
#include "cli/app.h"

struct store_model { /* empty when zero-initialised */
    char name[304];
    char path[PATHS_MAX];   /* absolute path, "ember:" or a URL; empty in files of earlier versions */
    char template_hash[24]; /* chat_template_hash in hexadecimal digits */
    uint64_t fingerprint;   /* engine_info.fingerprint; 0: unknown */
    uint64_t pinned;        /* expert_stats.pinned of the last answer; 0: none */
};
/* Copies the place from which the open model can be opened again: an absolute path, "ember:" or a URL. */
void store_model_place(const struct app *a, char out[PATHS_MAX]);
/* Appends the members model, path, template and fingerprint of the open model, and experts if some are pinned, without
 * braces. */
void store_model_write(const struct app *a, struct buf *out);
void store_model_parse(const struct json *body, struct store_model *out);
/* Notes that conversation `what` continues with another model or chat template. */
void store_model_note(const struct app *a, const char *what, const struct store_model *m);
/* Sets -m to the conversation's model unless the command line has -m. A server that HEARTH_MODEL or the configuration
 * does not name is a question on a terminal, else ERR_USAGE. ERR_MODEL if the model cannot be found: names the remedy.
 */
int store_model_select(struct app *a, const char *what, const struct store_model *m, struct error *e);
/* Compares the open model with the conversation's. ERR_MODEL if the files at its path have changed, unless the command
 * line has -m. */
int store_model_check(const struct app *a, const char *what, const struct store_model *m, struct error *e);
