#include "cli/options/words.h"

#include <string.h>

bool words_next(const char **at, char *out, bool *closed) {
    const char *s = *at + strspn(*at, " \t\n");
    char quote = 0;
    if (!*s) return false;
    for (; *s && (quote || !strchr(" \t\n", *s)); s++) {
        if (quote ? *s == quote : *s == '"' || *s == '\'') quote = quote ? 0 : *s;
        else if (*s == '\\' && s[1] && quote != '\'') *out++ = *++s;
        else *out++ = *s;
    }
    *out = 0;
    *at = s;
    if (quote) *closed = false;
    return true;
}
