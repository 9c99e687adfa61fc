#include "tokenizer/chat/chat_effort.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

const char *const chat_effort_levels[CHAT_EFFORTS] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
enum { LOW = 2, HIGH = 4 }; /* the levels between these are the usual ones */

/* Finds out whether a template renders a question with this effort; NULL: without one. */
static int find_taken(const struct chat_template *c, const char *effort, bool *taken, struct error *e) {
    struct buf b = {0};
    struct arena a = {0};
    struct json vars;
    struct text text = {0};
    struct error why = {0};
    buf_str(&b, "{\"messages\": [{\"role\": \"user\", \"content\": \"granite\"}], \"add_generation_prompt\": true, "
                "\"enable_thinking\": true, \"thinking\": true");
    if (effort) buf_fmt(&b, ", \"reasoning_effort\": \"%s\"", effort);
    buf_char(&b, '}');
    int rc =
        b.failed ? error_set(e, ERR_MEMORY, "no memory") : json_parse(&a, b.data, b.len, 0, "a question", &vars, e);
    if (!rc) {
        const int rendered = chat_template_render(c, &vars, &text, &why);
        *taken = !rendered;
        if (rendered == ERR_MEMORY) *e = why, rc = ERR_MEMORY;
    }
    text_free(&text);
    arena_free(&a);
    buf_free(&b);
    return rc;
}

static bool may_take(const struct chat_template *c, int level) {
    return (level >= LOW && level <= HIGH) ||
           chat_template_mentions(c, chat_effort_levels[level], strlen(chat_effort_levels[level]));
}

int chat_effort_fit(const struct chat_template *c, const char *given, size_t n, const char **out, struct error *e) {
    int wanted = 0;
    bool taken = false;
    *out = NULL;
    while (wanted < CHAT_EFFORTS &&
           (strlen(chat_effort_levels[wanted]) != n || memcmp(chat_effort_levels[wanted], given, n) != 0))
        wanted++;
    if (wanted == CHAT_EFFORTS) return 0;
    *out = chat_effort_levels[wanted];
    TRY(find_taken(c, NULL, &taken, e));
    if (!taken) return 0; /* the template refuses the question whatever the effort */
    for (int distance = 0; distance < CHAT_EFFORTS; distance++)
        for (int up = 0; up < (distance ? 2 : 1); up++) {
            const int level = up ? wanted + distance : wanted - distance;
            if (level < 0 || level >= CHAT_EFFORTS || !may_take(c, level)) continue;
            TRY(find_taken(c, chat_effort_levels[level], &taken, e));
            if (taken) return *out = chat_effort_levels[level], 0;
        }
    return 0;
}
