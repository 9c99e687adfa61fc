#include "cli/turn/code_block.h"

#include <string.h>

bool code_block_find(const struct buf *text, int nth, const char **begin, size_t *n) {
    const char *s = text->data ? text->data : "", *end = s + text->len, *line = s;
    const char *code = NULL; /* the open block; NULL: none */
    size_t n_open = 0;       /* marks in its fence */
    char mark = 0;
    for (; line < end; line++) {
        const char *line_end = memchr(line, '\n', (size_t)(end - line)), *fence = line;
        if (!line_end) line_end = end;
        /* as CommonMark: up to 3 blanks, then at least 3 marks */
        while (fence < line_end && *fence == ' ' && fence - line < 3) fence++;
        size_t n_marks = 0;
        while (fence + n_marks < line_end && (*fence == '`' || *fence == '~') && fence[n_marks] == *fence) n_marks++;
        if (!code && n_marks >= 3) {
            mark = *fence;
            n_open = n_marks;
            code = line_end < end ? line_end + 1 : end;
        } else if (code && n_marks >= n_open && *fence == mark &&
                   fence + n_marks + strspn(fence + n_marks, " \t\r") >= line_end) {
            if (!--nth) break;
            code = NULL;
        }
        line = line_end;
    }
    if (!code || nth > 1) return false;
    *begin = code;
    *n = (size_t)((line > end ? end : line) - code);
    return true;
}
