#pragma once
/* Inspection modes for other tools: each prints data on stdout and nothing else. */
#include "cli/app.h"

int inspect_model(struct app *a, struct error *e);      /* --inspect */
int inspect_verify(struct app *a, struct error *e);     /* --verify */
int inspect_tokenize(struct app *a, struct error *e);   /* --tokenize */
int inspect_detokenize(struct app *a, struct error *e); /* --detokenize */
int inspect_render(struct app *a, struct error *e);     /* --render */
int inspect_tokens(struct app *a, struct error *e);     /* --tokens with --logits-out or --ids */
