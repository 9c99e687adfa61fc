#pragma once
/* The tokens of a vocabulary as a trie of their bytes, in depth-first order. Control tokens, tokens without bytes and
 * those with a byte that no text has are left out. Read-only after opening. */
#include "tokenizer/tokenizer.h"

/* Nodes of a trie; node 0 is the root. */
struct trie_nodes {
    uint32_t n;
    uint8_t *byte;   /* [n] */
    uint16_t *depth; /* [n] */
    uint32_t *end;   /* [n] the first node that is not below this one */
    int32_t *token;  /* [n] a token with the bytes on the path, or -1 */
};
enum { TRIE_PLAIN = 32 }; /* most characters of a plain token */
struct token_trie {
    const struct tokenizer *tokenizer;
    int n_ids;
    uint32_t longest; /* bytes of the longest token */
    /* other: without plain tokens, which have whole characters that grammar_text() accepts */
    struct trie_nodes all, other;
    uint64_t *plain[TRIE_PLAIN + 1]; /* [i] bits of the plain tokens of at most i characters */
    struct trie_nodes tagged_other;  /* without plain tokens that have no '<' */
    uint64_t *tagged_plain;          /* bits of plain tokens that have no '<' */
    int32_t *same;                   /* [n_ids] the next token with the same bytes, or -1 */
};
/* Builds the trie. The tokenizer must outlive it. ERR_MODEL: the decoder puts text between the tokens, so their bytes
 * are not the answer's. ERR_MEMORY. */
int token_trie_open(struct token_trie **t, const struct tokenizer *tokenizer, struct error *e);
void token_trie_close(struct token_trie **t);
