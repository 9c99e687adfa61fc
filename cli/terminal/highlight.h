#pragma once
/* Highlights code of common languages, word by word. Knows keywords, strings and comments, nothing of grammar. Pure. */
#include <stdbool.h>
#include <stddef.h>

enum highlight_kind { HIGHLIGHT_PLAIN, HIGHLIGHT_KEYWORD, HIGHLIGHT_STRING, HIGHLIGHT_COMMENT };
struct language;
struct highlight { /* no language when zero-initialised */
    const struct language *lang;
    char quote;                   /* quote of the open string; 0: none */
    bool comment, block, escaped; /* within a comment to the end of the line, or a block comment; after a backslash */
};
/* Chooses the language by the word after an opening fence, such as "c" or "python". Unknown words give no
 * highlights. */
void highlight_begin(struct highlight *h, const char *name, size_t n);
/* Sets kinds[i], an enum highlight_kind, for each byte of a word: text between blanks. Continues in the state of the
 * words before. */
void highlight_word(struct highlight *h, const char *word, size_t n, unsigned char *kinds);
void highlight_end_line(struct highlight *h);
