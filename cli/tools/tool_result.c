#include "cli/tools/tool_result.h"

#include <stdarg.h>
#include <stdio.h>

const char *tool_result_status(const struct tool_result *r) {
    static const char *const names[] = {
        [TOOL_OK] = "ok", [TOOL_FAILED] = "failed", [TOOL_REFUSED] = "refused", [TOOL_STOPPED] = "stopped"};
    return names[r->status];
}

void tool_result_note(struct tool_result *r, const char *fmt, ...) {
    char note[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(note, sizeof note, fmt, ap);
    va_end(ap);
    const bool fresh = !r->text.len || r->text.data[r->text.len - 1] == '\n';
    buf_fmt(&r->text, "%s[%s]", fresh ? "" : "\n", note);
}

void tool_result_free(struct tool_result *r) {
    buf_free(&r->text);
    *r = (struct tool_result){0};
}
