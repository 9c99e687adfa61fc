#include "cli/server/responses_seal.h"

#include <string.h>

#include "base/base64.h"
#include "base/utf8.h"
#include "cli/server/api_messages.h"
#include "cli/terminal/out.h"

static const char mark[] = "hearth.1."; /* before the base64 */

bool responses_seal_wanted(const struct api_request *r, const struct json *include) {
    bool named = false;
    for (uint32_t i = 0; include && include->type == JSON_ARRAY && i < include->n; i++)
        named |= json_is(&include->items[i], "reasoning.encrypted_content");
    return named || r->no_disk_cache;
}

void responses_seal_put(struct buf *b, const char *s, size_t n) {
    struct buf text = {0};
    out_utf8(&text, s ? s : "", n);
    buf_fmt(b, "\"%s", mark);
    base64_put(b, text.data ? text.data : "", text.len);
    buf_char(b, '"');
    b->failed |= text.failed;
    buf_free(&text);
}

int responses_seal_read(struct api_request *r, const struct json *sealed, struct json *out, struct error *e) {
    const size_t n = sizeof mark - 1;
    struct buf text = {0};
    if (!sealed || sealed->type != JSON_STRING || sealed->n < n || memcmp(sealed->string, mark, n) != 0) return 0;
    const int rc = base64_decode(sealed->string + n, sealed->n - n, &text);
    const bool is_text = !rc && utf8_valid(text.data ? text.data : "", text.len) == text.len;
    if (rc == ERR_MEMORY) error_set(e, ERR_MEMORY, "no memory");
    if (is_text) return api_messages_take(r, &text, out, e);
    buf_free(&text);
    return rc == ERR_MEMORY ? rc : 0;
}
