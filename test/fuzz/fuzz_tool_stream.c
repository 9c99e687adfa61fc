/* A model's markup of calls in pieces, whose size the first byte selects: calls only grow, and the complete ones are
 * objects in JSON. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "tokenizer/chat/tool_stream.h"

static bool begins_as(const struct buf *a, const struct buf *b) {
    return a->len <= b->len && (!a->len || !memcmp(a->data, b->data, a->len));
}

static void check(const struct tool_calls *before, const struct tool_calls *now, size_t n_complete) {
    if (now->n < before->n || n_complete > now->n || now->n > n_complete + 1) abort();
    for (size_t i = 0; i < before->n; i++) {
        if (before->v[i].name.len != now->v[i].name.len || !begins_as(&before->v[i].name, &now->v[i].name)) abort();
        if (!begins_as(&before->v[i].arguments, &now->v[i].arguments)) abort();
    }
    for (size_t i = 0; i < n_complete; i++) {
        struct arena arena = {0};
        struct json j;
        const struct buf *text = &now->v[i].arguments;
        if (json_parse(&arena, text->data, text->len, 0, "arguments", &j, NULL) || j.type != JSON_OBJECT) abort();
        arena_free(&arena);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || size > 4096 || utf8_valid((const char *)data + 1, size - 1) != size - 1) return 0;
    struct tool_stream *t = tool_stream_open(NULL);
    const char *s = (const char *)data + 1, *end = s + size - 1;
    struct tool_calls before = {0};
    while (t && s < end) {
        const char *from = s;
        size_t n_complete;
        for (int k = 0; k <= data[0] % 64 && s < end; k++) utf8_next(&s);
        if (tool_stream_add(t, from, (size_t)(s - from))) abort();
        const struct tool_calls *now = tool_stream_calls(t, &n_complete);
        check(&before, now, n_complete);
        tool_calls_truncate(&before, 0);
        if (tool_calls_copy(now, &before)) abort();
    }
    tool_calls_free(&before);
    tool_stream_close(&t);
    return 0;
}
