#pragma once
/* Selects the engine that answers, and opens the model. */
#include "cli/app.h"

void open_init(struct app *a); /* selects the engine of this process; call first */
/* Resolves -m to a directory in a->model_dir. ERR_MODEL without a match. */
int open_find_model(struct app *a, struct error *e);
/* open_text: chooses the backend and opens what prompts are rendered with. open_engine: opens the engine, with progress
 * on a terminal. open_close undoes both. */
int open_text(struct app *a, struct error *e);
/* Fits the tools to the open model, as open_text does. ERR_USAGE: its chat template has none. */
int open_tools(struct app *a, struct error *e);
int open_engine(struct app *a, struct error *e);
void open_close(struct app *a);
/* Closes the model and opens it again, with what has been found out about the GPUs since. An error leaves a->info NULL.
 */
int open_again(struct app *a, struct error *e);
/* Closes the model and opens another. If that fails, reopens the old one; a->info is NULL when neither opens. */
int open_other_model(struct app *a, const char *name, struct error *e);
/* True if the open model is the built-in one. */
bool open_is_builtin(const struct app *a);
/* Sets sampling from the options, then the model's defaults, then built-in ones. Without --seed it draws a seed. */
void open_sampling(const struct app *a, const struct opts *o, struct sampling *s);
