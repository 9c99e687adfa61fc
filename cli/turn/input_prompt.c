#include "cli/turn/input_prompt.h"

#include <string.h>

#include "cli/options/trim.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/turn/input_paths.h"
#include "cli/turn/prompt_file.h"

static bool is_blank(const char *s, size_t n) { return !n || !trim_end(s, n, " \t\r\n\v\f"); }

/* Appends the files of -f as documents. */
static int add_files(const struct opt_value *files, struct buf *out, struct image_files *images, struct error *e) {
    struct input_paths l = {0};
    int rc = 0;
    for (size_t i = 0; i < files->n_items && !rc; i++) rc = input_paths_add(&l, files->items[i], e);
    for (size_t i = 0; i < l.n && !rc; i++) rc = input_document(&l.v[i], out, images, NULL, e);
    if (!rc) input_paths_note_skipped(&l);
    input_paths_free(&l);
    return rc;
}

static bool reads_stdin(const struct app *a, const struct opt_value *files) {
    if (a->tty_in || a->opts.v[OPT_NO_STDIN].on) return false;
    for (size_t i = 0; i < files->n_items; i++)
        if (!strcmp(files->items[i], "-")) return false; /* taken by -f */
    return true;
}

/* Reads stdin into text, or adds it to images at byte `at` of the prompt. A blank text counts as empty, except with
 * --raw. */
static int read_stdin(const struct app *a, struct buf *text, struct image_files *images, size_t at, struct error *e) {
    struct buf in = {0};
    char size[32];
    int rc = input_stdin(&in, e);
    if (!rc && !a->opts.v[OPT_RAW].on && engine_image_kind(in.data, in.len)) {
        rc = image_files_add(images, at, "stdin", in.data, in.len) ? error_set(e, ERR_MEMORY, "stdin: no memory") : 0;
        if (!rc)
            report_note("attached stdin as an image (%s); --no-stdin ignores it",
                        amount_bytes(in.len, size, sizeof size));
        buf_free(&in);
        return rc;
    }
    if (!rc && !a->opts.v[OPT_RAW].on) rc = input_check_text("stdin", &in, true, e);
    if (!rc) rc = input_clean_text("stdin", &in, text, e);
    buf_free(&in);
    if (a->opts.v[OPT_RAW].on) return rc;
    text->len = is_blank(text->data, text->len) ? 0 : trim_end(text->data, text->len, "\n\r");
    return rc;
}

int input_prompt(struct app *a, struct buf *out, size_t *n_document, struct image_files *images, struct error *e) {
    const struct opt_value *v = a->opts.v;
    const char *p = v[OPT_PROMPT].text;
    bool p_is_stdin = p && !strcmp(p, "-") && !v[OPT_PROMPT_FILE].text, raw = v[OPT_RAW].on;
    struct buf text = {0}, given = {0}, from_file = {0};
    char size[32];
    if (v[OPT_PROMPT_FILE].text) {
        int rc = prompt_file_read(v[OPT_PROMPT_FILE].text, &v[OPT_VAR], &from_file, e);
        if (rc || buf_add(&from_file, "", 0)) {
            buf_free(&from_file);
            return rc ? rc : error_set(e, ERR_MEMORY, "no memory");
        }
        p = from_file.data;
    }
    if (p && !p_is_stdin && (raw || !is_blank(p, strlen(p)))) given = (struct buf){.data = (char *)p, .len = strlen(p)};
    int rc = add_files(&v[OPT_FILE], out, images, e);
    *n_document = out->len;
    if (!rc && (p_is_stdin || reads_stdin(a, &v[OPT_FILE]))) rc = read_stdin(a, &text, images, out->len, e);
    if (!rc && text.len) {
        buf_add(out, text.data, text.len);
        if (given.len || !v[OPT_FILE].n_items) *n_document = out->len;
        if (given.len && !raw) buf_str(out, "\n\n");
        if (given.len)
            report_note("attached stdin as a document (%s); --no-stdin ignores it",
                        amount_bytes(text.len, size, sizeof size));
    }
    if (!rc && given.len) rc = input_clean_text("-p", &given, out, e);
    bool asked = text.len || given.len;
    buf_free(&text);
    buf_free(&from_file);
    if (rc) return rc;
    if (out->failed) return error_set(e, ERR_MEMORY, "no memory");
    if (asked && out->len) return 0;
    if (!v[OPT_FILE].n_items && images->n)
        return error_set(e, ERR_USAGE, "an image but no question: give one with -p TEXT");
    return error_set(e, ERR_USAGE,
                     v[OPT_FILE].n_items ? "files but no question: give one with -p TEXT"
                                         : "no prompt: give one with -p TEXT or on stdin");
}
