#include "cli/options/breakers.h"

#include <string.h>

int breakers_read(const struct json *list, char out[BREAKERS_BYTES], struct error *e) {
    size_t n = 0;
    memset(out, 0, BREAKERS_BYTES);
    if (list->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "must be a list of texts, such as [\"\\n\", \":\"]");
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *j = &list->items[i];
        if (j->type != JSON_STRING || !j->n || memchr(j->string, 0, j->n))
            return error_set(e, ERR_USAGE, "text %u is empty, has a zero byte or is no text", i + 1);
        if (n + j->n + 2 > BREAKERS_BYTES) /* its NUL, and that of the empty text */
            return error_set(e, ERR_USAGE, "the texts have more than %d bytes together", BREAKERS_BYTES - 2);
        memcpy(out + n, j->string, j->n);
        n += j->n + 1;
    }
    return 0;
}

int breakers_parse(const char *text, char out[BREAKERS_BYTES], struct error *e) {
    struct arena a = {0};
    struct json list;
    if (!text) text = BREAKERS_DEFAULT;
    if (!strcmp(text, "none")) text = "[]";
    int rc = json_parse(&a, text, strlen(text), 0, "the list", &list, e);
    if (rc == ERR_MODEL)
        rc = error_set(e, ERR_USAGE, "'%.60s' is not a JSON list of texts, such as [\"\\n\", \":\"]", text);
    if (!rc) rc = breakers_read(&list, out, e);
    arena_free(&a);
    return rc;
}
