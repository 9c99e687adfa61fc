#pragma once
/* Verbs that people know from other programs, as in `hearth run NAME`, in place of options. */

/* what follows the verb */
enum opt_verb_object {
    VERB_ALONE,
    VERB_NAME,        /* must be followed by a model's name */
    VERB_MAY_NAME,    /* may be */
    VERB_NAME_PROMPT, /* must be followed by a name, which a prompt may follow */
    VERB_MAY_NAME_PROMPT,
    VERB_REFUSED /* hearth does not do it */
};
struct opt_verb {
    const char *word;
    const char *option; /* name of the one that the verb stands for; NULL: the verb only names a model */
    enum opt_verb_object object;
    const char *usage;
};
const struct opt_verb *opt_verb_find(const char *word); /* NULL: no verb */
