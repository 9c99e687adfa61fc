#pragma once
/* What --inspect says of a model, from the headers of its files alone, before they are downloaded. */
#include "cli/app.h"
#include "cli/hub/hub_choice.h"
#include "cli/hub/hub_store.h"

/* Fetches the headers of the weights and inspects them with the settings, which are blobs already. Sets root to the
 * inspection, which is in *arena and needs *text. ERR_MODEL: hearth cannot open the model, with the reason. */
int hub_preview(struct app *a, struct hub *h, const struct hub_listing *l, const struct hub_store *s,
                const struct hub_set *settings, const struct hub_set *weights, struct buf *text, struct arena *arena,
                struct json *root, struct error *e);
