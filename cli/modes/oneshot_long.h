#pragma once
/* --long split: a document larger than the context is read in parts. The model takes notes on each part that help to
 * answer the question; these replace the document. If they do not fit, they are read in parts, too. */
#include "cli/app.h"
#include "cli/turn/conversation.h"
#include "cli/turn/prompt.h"

struct engine_client;

struct oneshot_long {
    bool splits;             /* --long split */
    size_t n_document;       /* bytes of the question's text that are documents; the rest asks about them. 0: none */
    int n_parts;             /* of the document, once it was read; 1: it fits as it is */
    struct turn_stats stats; /* sums over the turns of all parts */
};

/* With --long split: replaces the documents of the conversation's last message, and the prompt, if they do not fit into
 * the context. ERR_CANCELLED: the user stopped it. The prompt may be one that was not made, for lack of room. */
int oneshot_long_read(struct app *a, struct engine_client *s, struct oneshot_long *l, struct conversation *c,
                      struct prompt *prompt, struct error *e);
/* Names --long split in the error of a prompt that does not fit. */
void oneshot_long_hint(const struct oneshot_long *l, struct error *e);
