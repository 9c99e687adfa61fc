#include "cli/terminal/highlight.h"

#include <string.h>
#include <strings.h>

struct language {
    const char *names; /* separated by blanks, as are keywords */
    const char *keywords;
    const char *comment, *comment2; /* begin a comment that ends with the line; NULL: none */
    const char *block[2];           /* begin and end of block comments */
    const char *quotes;
    bool multiline_quotes, ignore_case; /* strings may contain line ends; keywords in any case */
};

#define C_WORDS \
    "break case char const continue default do double else enum extern float for goto if int long return short " \
    "signed sizeof static struct switch typedef " \
    "union unsigned void volatile while bool true false NULL inline "
static const struct language languages[] = {
    {"c h", C_WORDS "restrict _Atomic _Bool", "//", NULL, {"/*", "*/"}, "\"'", false, false},
    {"cpp c++ cc cxx hpp cuda cu",
     C_WORDS "auto class constexpr delete explicit friend namespace new nullptr operator private protected public "
             "template this throw try catch "
             "typename using virtual override",
     "//",
     NULL,
     {"/*", "*/"},
     "\"'",
     false,
     false},
    {"python py",
     "and as assert async await break class continue def del elif else except False finally for from global if import "
     "in is lambda None nonlocal not or "
     "pass raise return True try while with yield",
     "#",
     NULL,
     {NULL, NULL},
     "\"'",
     false,
     false},
    {"sh bash zsh shell console",
     "if then else elif fi for while until do done case esac in function return local export readonly set unset exit",
     "#",
     NULL,
     {NULL, NULL},
     "\"'",
     true,
     false},
    {"js javascript ts typescript jsx tsx",
     "async await break case catch class const continue debugger default delete do else export extends finally for "
     "function if import "
     "in instanceof interface let new null of return static super switch this throw true false try type typeof "
     "undefined var void while yield",
     "//",
     NULL,
     {"/*", "*/"},
     "\"'`",
     true,
     false},
    {"rust rs",
     "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move "
     "mut pub ref return self Self static "
     "struct "
     "super trait true type unsafe use where while",
     "//",
     NULL,
     {"/*", "*/"},
     "\"",
     true,
     false},
    {"go golang",
     "break case chan const continue default defer else fallthrough for func go goto if import interface map nil "
     "package range return select struct switch "
     "true "
     "false type var",
     "//",
     NULL,
     {"/*", "*/"},
     "\"'`",
     true,
     false},
    {"java kotlin kt scala",
     "abstract boolean break byte case catch char class continue default do double else enum extends final finally "
     "float for fun if implements import "
     "instanceof int interface long new null package private protected public return short static super switch this "
     "throw throws true false try val var void "
     "while",
     "//",
     NULL,
     {"/*", "*/"},
     "\"'",
     false,
     false},
    {"sql",
     "select from where and or not in is null insert into values update set delete create table drop alter index join "
     "left right inner outer on group by order "
     "having "
     "limit as distinct union all case when then else end primary key",
     "--",
     NULL,
     {"/*", "*/"},
     "'\"",
     true,
     true},
    {"json", "true false null", NULL, NULL, {NULL, NULL}, "\"", false, false},
    {"yaml yml toml ini", "true false null yes no", "#", ";", {NULL, NULL}, "\"'", false, false},
};

static bool has_word(const char *list, const char *word, size_t n, bool ignore_case) {
    for (const char *s = list; *s;) {
        size_t k = strcspn(s, " ");
        if (k == n && !(ignore_case ? strncasecmp(s, word, n) : strncmp(s, word, n))) return true;
        s += k + strspn(s + k, " ");
    }
    return false;
}

void highlight_begin(struct highlight *h, const char *name, size_t n) {
    *h = (struct highlight){0};
    for (size_t i = 0; i < sizeof languages / sizeof *languages && n; i++)
        if (has_word(languages[i].names, name, n, true)) h->lang = &languages[i];
}

static bool is_word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}
static bool starts_with(const char *s, size_t n, const char *prefix) {
    return prefix && strlen(prefix) <= n && !memcmp(s, prefix, strlen(prefix));
}

/* Returns the bytes of the string or comment at s, from its first byte to its end or to the end of the word. */
static size_t skip_delimited(struct highlight *h, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (h->block && starts_with(s + i, n - i, h->lang->block[1])) {
            h->block = false;
            return i + strlen(h->lang->block[1]);
        }
        if (!h->quote) continue;
        bool ends = s[i] == h->quote && !h->escaped;
        h->escaped = s[i] == '\\' && !h->escaped;
        if (ends) {
            h->quote = 0;
            return i + 1;
        }
    }
    return n;
}

/* Returns the bytes and the kind of the next part of a word. */
static size_t next_part(struct highlight *h, const char *s, size_t n, enum highlight_kind *kind) {
    const struct language *l = h->lang;
    size_t k = 0;
    *kind = h->quote ? HIGHLIGHT_STRING : HIGHLIGHT_COMMENT;
    if (h->quote || h->comment || h->block) return skip_delimited(h, s, n);
    if (starts_with(s, n, l->comment) || starts_with(s, n, l->comment2)) {
        h->comment = true;
        return n;
    }
    if (starts_with(s, n, l->block[0])) {
        k = strlen(l->block[0]);
        h->block = true;
        return k + skip_delimited(h, s + k, n - k);
    }
    if (strchr(l->quotes, *s)) {
        h->quote = *s;
        *kind = HIGHLIGHT_STRING;
        return 1 + skip_delimited(h, s + 1, n - 1);
    }
    while (k < n && is_word_char(s[k])) k++;
    *kind = k && has_word(l->keywords, s, k, l->ignore_case) ? HIGHLIGHT_KEYWORD : HIGHLIGHT_PLAIN;
    return k ? k : 1;
}

void highlight_word(struct highlight *h, const char *word, size_t n, unsigned char *kinds) {
    enum highlight_kind kind;
    memset(kinds, HIGHLIGHT_PLAIN, n);
    for (size_t i = 0, k; h->lang && i < n; i += k) {
        k = next_part(h, word + i, n - i, &kind);
        memset(kinds + i, kind, k);
    }
}

void highlight_end_line(struct highlight *h) {
    h->comment = h->escaped = false;
    if (h->lang && !h->lang->multiline_quotes) h->quote = 0;
}
