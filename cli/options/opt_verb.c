#include "cli/options/opt_verb.h"

#include <stddef.h>
#include <string.h>

static const struct opt_verb verbs[] = {
    {"run", NULL, VERB_NAME_PROMPT, "hearth run NAME [PROMPT] chats with the model NAME; hearth list lists the models"},
    {"chat", NULL, VERB_MAY_NAME_PROMPT, "hearth chat [NAME] chats with the model NAME"},
    {"pull", "pull", VERB_NAME, "hearth pull ORG/NAME[:QUANT] downloads a model"},
    {"list", "models", VERB_ALONE, "hearth list lists the models, hearth --list the saved conversations"},
    {"ls", "models", VERB_ALONE, "hearth ls lists the models, hearth --list the saved conversations"},
    {"show", "inspect", VERB_NAME, "hearth show NAME says what the model NAME is and how fast it can be"},
    {"serve", "serve", VERB_MAY_NAME,
     "hearth serve [NAME] keeps a model open for other programs; --listen PORT opens a port"},
    {"ps", "status", VERB_ALONE, "hearth ps shows what the resident engine does"},
    {"stop", "stop", VERB_ALONE, "hearth stop stops the resident engine"},
    {"rm", NULL, VERB_REFUSED, "hearth deletes no models; hearth --models --json names their folders"}};

const struct opt_verb *opt_verb_find(const char *word) {
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(word, verbs[i].word)) return &verbs[i];
    return NULL;
}
