#pragma once
/* The tokens of a vocabulary as a trie of their bytes, in depth-first order. Control tokens and tokens without bytes are left out. Read-only after opening. */
#include "tokenizer/tokenizer.h"

struct token_trie {
    const struct tokenizer *tokenizer;
    int n_ids;
    uint32_t n_nodes, longest; /* bytes of the longest token */
    uint8_t *byte;             /* [n_nodes] node 0 is the root */
    uint16_t *depth;           /* [n_nodes] 0: the root */
    uint32_t *end;             /* [n_nodes] the first node that is not below this one */
    int32_t *token;            /* [n_nodes] a token with the bytes on the path, or -1 */
    int32_t *same;             /* [n_ids] the next token with the same bytes, or -1 */
};
/* Builds the trie. The tokenizer must outlive it. ERR_MODEL: the decoder puts text between the tokens, so their bytes are not the answer's. ERR_MEMORY. */
int token_trie_open(struct token_trie **t, const struct tokenizer *tokenizer, struct error *e);
void token_trie_close(struct token_trie **t);
