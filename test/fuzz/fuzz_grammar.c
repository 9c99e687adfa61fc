/* Any bytes as a schema, a pattern, a GBNF grammar or a list of choices: the first byte selects which. An accepted
 * grammar is followed for some bytes: the shortest way must lead to its end. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/grammar/automaton.h"
#include "tokenizer/grammar/source.h"

static void follow(const struct grammar *g, const uint8_t *data, size_t size) {
    struct automaton *a;
    struct error e = {0};
    if (automaton_open(&a, g, &e)) return;
    state_id s = automaton_start(a);
    for (size_t i = 0; i < size && i < 200; i++) {
        const state_id next = automaton_step(a, s, data[i]);
        if (next) s = next;
    }
    for (int n = 0; n < 200 && s && automaton_missing(a, s); n++) {
        state_id best = STATE_DEAD;
        for (int b = 0; b < 256; b++) {
            const state_id to = automaton_step(a, s, (uint8_t)b);
            if (to && (!best || automaton_missing(a, to) < automaton_missing(a, best))) best = to;
        }
        if (!automaton_failure(a, NULL) && (!best || automaton_missing(a, best) >= automaton_missing(a, s))) abort();
        s = best;
    }
    automaton_close(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct grammar *g;
    struct error e = {0};
    if (!size || size > 4096) return 0;
    const struct grammar_source source = {.kind = data[0] == 'T' ? SOURCE_TOOL_CALLS : (enum source_kind)(data[0] % 5),
                                          .text = (const char *)data + 1,
                                          .n = size - 1};
    if (source_compile(&source, &g, &e)) {
        if (!e.text[0] || g) abort();
        return 0;
    }
    follow(g, data, size);
    grammar_free(&g);
    return 0;
}
