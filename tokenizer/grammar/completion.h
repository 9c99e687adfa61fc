#pragma once
/* The shortest way to complete a text, in tokens. Each state has one completion in bytes, one of the shortest, which
 * depends on the state only: after the first tokens of a completion the rest is the completion of the state reached.
 * Used by one thread at a time. */
#include "tokenizer/grammar/automaton.h"
#include "tokenizer/grammar/token_trie.h"

struct completion {
    state_id next;   /* after `byte`; STATE_DEAD at the end of the text, or if no byte shortens the rest */
    uint32_t tokens; /* the fewest that spell the completion; UINT32_MAX: none do */
    uint8_t byte;
    bool is_known;
};
struct completions { /* ready when zero-initialised */
    struct completion *v;
    state_id *path;
    size_t cap, cap_path;
};
/* Sets *tokens to the fewest that complete the text as the completion of s does: 0 if it is complete, UINT32_MAX if
 * none do, or if the completion is very long or the automaton crowded. The completion of a state whose number is known
 * stays known. ERR_MEMORY. */
int completion_tokens(struct completions *c, struct automaton *a, const struct token_trie *t, state_id s,
                      uint32_t *tokens);
void completion_drop(struct completions *c); /* after automaton_compact(), and at the end */
