#pragma once
/* Downloads models into the Hugging Face cache. */
#include "cli/app.h"

int hub_pull_run(struct app *a, struct error *e); /* --pull */
/* Offers to pull the model that -m names and this machine lacks, where a person can answer. 0: it is there now;
 * ERR_CANCELLED: not asked, or not a name on a hub; another code: refused or failed, with *e set. */
int hub_pull_offer(struct app *a, const char *name, struct error *e);
