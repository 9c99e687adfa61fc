/* Commands that copy, export and search text. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "base/file.h"
#include "cli/chat/command.h"
#include "cli/chat/screen.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/sanitize.h"
#include "cli/turn/code_block.h"

/* --- /copy ------------------------------------------------------------------------------------ */

/* Sends text to the terminal's clipboard, sanitized: an ESC or CR in it could run a command when it is pasted into a
 * shell. */
static void copy_to_clipboard(struct repl *r, const char *text, size_t n) {
    struct sanitizer filter = {0};
    struct buf clean = {0}, b = {0};
    sanitize_add(&filter, text, n, &clean);
    sanitize_flush(&filter, &clean);
    buf_str(&b, "\033]52;c;"); /* OSC 52 */
    base64_put(&b, clean.data ? clean.data : "", clean.len);
    buf_char(&b, '\a');
    bool failed = clean.failed || b.failed;
    char size[32];
    if (!failed) out_draw(1, b.data, b.len);
    if (failed) screen_print(r, "no memory");
    else
        screen_print(r, "copied %s (if your terminal allows it)",
                     amount_count((long long)clean.len, "byte", size, sizeof size));
    buf_free(&clean);
    buf_free(&b);
}

void command_copy(struct repl *r, const char *arg) {
    const struct message *m = conversation_last(&r->active->conv, ROLE_ASSISTANT);
    const char *code;
    size_t n;
    char *end;
    bool wants_code = !strncmp(arg, "code", 4) && (!arg[4] || arg[4] == ' ');
    long nth = wants_code && arg[4] ? strtol(arg + 5, &end, 10) : 1;
    if (*arg && (!wants_code || nth < 1 || nth > 9999 || (arg[4] && *end)))
        screen_print(r, "/copy copies the last answer, /copy code [N] its Nth code block");
    else if (!m) screen_print(r, "there is no answer to copy");
    else if (!wants_code) copy_to_clipboard(r, m->text.data ? m->text.data : "", m->text.len);
    else if (code_block_find(&m->text, (int)nth, &code, &n)) copy_to_clipboard(r, code, n);
    else screen_print(r, nth > 1 ? "the last answer has no code block %ld" : "the last answer has no code block", nth);
}

/* --- /export ---------------------------------------------------------------------------------- */

static void put_message(const struct message *m, struct buf *out) {
    static const char *const heads[] = {[ROLE_SYSTEM] = "System prompt",
                                        [ROLE_USER] = "Question",
                                        [ROLE_ASSISTANT] = "Answer",
                                        [ROLE_TOOL] = "Result of"};
    struct buf documents = {0};
    const char *text = m->text.data ? m->text.data : "";
    size_t n = m->text.len;
    if (m->role == ROLE_USER) {
        text = conversation_question(m, &documents);
        n = text ? m->text.len - (size_t)(text - m->text.data) : 0;
    }
    buf_fmt(out, "%s## %s", out->len ? "\n" : "", heads[m->role]);
    if (m->role == ROLE_TOOL) buf_fmt(out, " %s", m->calls.v[0].name.data);
    buf_str(out, "\n\n");
    if (documents.len) buf_fmt(out, "Attached: %s\n\n", documents.data);
    if (n) out_utf8(out, text, n);
    if (!n || text[n - 1] != '\n') buf_char(out, '\n');
    for (size_t i = 0; m->role == ROLE_ASSISTANT && i < m->calls.n; i++) {
        buf_str(out, "\n    ");
        tool_round_show_call(&m->calls.v[i], out);
        buf_char(out, '\n');
    }
    if (m->partial) buf_str(out, "\n(stopped)\n");
    buf_free(&documents);
}

void command_export(struct repl *r, const char *arg) {
    const struct conversation *c = &r->active->conv;
    struct buf b = {0};
    struct error e;
    char path[PATHS_MAX];
    if (!*arg || paths_expand(arg, path, sizeof path))
        screen_print(r, "/export FILE writes the conversation to FILE as Markdown");
    else if (!c->n) screen_print(r, "the conversation is empty");
    else if (file_exists(path)) screen_print(r, "%s exists already; nothing was written", path);
    else {
        for (size_t i = 0; i < c->n; i++) put_message(&c->messages[i], &b);
        if (b.failed) screen_print(r, "no memory");
        else if (file_write(path, b.data, b.len, &e)) screen_print(r, "%s", e.text);
        else screen_print(r, "%zu message%s written to %s", c->n, c->n == 1 ? "" : "s", path);
    }
    buf_free(&b);
}

/* --- /search ---------------------------------------------------------------------------------- */

/* Returns the first occurrence without regard to the case of ASCII letters, or NULL. */
static const char *find_text(const char *s, size_t n, const char *what) {
    size_t k = strlen(what);
    for (size_t i = 0; i + k <= n; i++)
        if (!strncasecmp(s + i, what, k)) return s + i;
    return NULL;
}

/* Prints the first match in a saved conversation, with some text around it. */
static bool print_match(struct repl *r, const char *name, const struct conversation *c, const char *what) {
    enum { BEFORE = 30, EXCERPT_BYTES = 100 };
    for (size_t i = 0; i < c->n; i++) {
        const struct buf *text = &c->messages[i].text;
        const char *at = find_text(text->data ? text->data : "", text->len, what);
        struct buf line = {0};
        if (!at) continue;
        const char *from = at - text->data > BEFORE ? at - BEFORE : text->data, *end = text->data + text->len;
        while (from < at && ((unsigned char)*from & 0xC0) == 0x80) from++; /* not inside a UTF-8 character */
        for (const char *s = from; s < end && s - from < EXCERPT_BYTES; s++)
            buf_char(&line, (unsigned char)*s <= ' ' ? ' ' : *s);
        screen_print(r, "  %s: %s%s", name, from > text->data ? "..." : "", line.data ? line.data : "");
        buf_free(&line);
        return true;
    }
    return false;
}

void command_search(struct repl *r, const char *arg) {
    enum { MOST = 20 };
    struct store_entry *v;
    struct error e;
    size_t n, found = 0;
    if (!*arg) {
        screen_print(r, "/search TEXT shows the saved conversations that contain TEXT");
        return;
    }
    if (store_list_entries(&v, &n, &e)) {
        screen_print(r, "%s", e.text);
        return;
    }
    for (size_t i = 0; i < n && found < MOST; i++) {
        struct conversation c = {0};
        if (!v[i].damaged && !store_read(v[i].name, &c, NULL)) found += print_match(r, v[i].name, &c, arg);
        conversation_free(&c);
    }
    mem_free(v);
    if (!found) screen_print(r, "no saved conversation contains '%s'", arg);
    else
        screen_print(
            r, found == MOST ? "these are the newest %zu; /load NAME opens one" : "%zu found; /load NAME opens one",
            found);
}
