#include "cli/turn/code_block.h"

#include <string.h>

bool code_block_find(const struct buf *text, int nth, const char **begin, size_t *n) {
    const char *s = text->data ? text->data : "", *end = s + text->len, *line = s;
    const char *open = NULL;
    size_t ticks = 0;
    char mark = 0;
    for (; line < end; line++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line)), *at = line;
        if (!stop) stop = end;
        while (at < stop && *at == ' ' && at - line < 3) at++;
        size_t k = 0;
        while (at + k < stop && (*at == '`' || *at == '~') && at[k] == *at) k++;
        if (!open && k >= 3) {
            mark = *at;
            ticks = k;
            open = stop < end ? stop + 1 : end;
        } else if (open && k >= ticks && *at == mark && at + k + strspn(at + k, " \t\r") >= stop) {
            if (!--nth) break;
            open = NULL;
        }
        line = stop;
    }
    if (!open || nth > 1) return false;
    *begin = open;
    *n = (size_t)((line > end ? end : line) - open);
    return true;
}
