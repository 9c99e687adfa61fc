/* render_main TEMPLATE CONVERSATION.json: writes the rendered prompt to stdout, or an error to stderr with exit
 * status 1. With -: reads pairs of lines from stdin, each a JSON string (template) and a JSON object (variables), and
 * answers each with one line, "T" and the text or "E" and the error as a JSON string. diff_jinja.py runs thousands of
 * cases this way. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "tokenizer/jinja/jinja.h"

static int render(const char *source, size_t n, const struct json *vars, struct text *out, struct error *e) {
    struct jinja *j;
    int rc = jinja_parse(&j, source, n, "template", e);
    if (!rc) rc = jinja_render(j, vars, NULL, out, e);
    jinja_close(&j);
    return rc;
}

static int serve(void) {
    char *lines[2] = {0};
    size_t caps[2] = {0};
    for (;;) {
        struct json j[2];
        struct arena a = {0};
        struct error e = {0};
        struct text t = {0};
        struct buf b = {0};
        for (int i = 0; i < 2; i++) {
            ssize_t n = getline(&lines[i], &caps[i], stdin);
            if (n < 0) {
                free(lines[0]);
                free(lines[1]);
                return 0;
            }
            if (json_parse(&a, lines[i], (size_t)n, 0, "stdin", &j[i], &e)) {
                fprintf(stderr, "%s\n", e.text);
                return 2;
            }
        }
        int rc = render(j[0].string, j[0].n, &j[1], &t, &e);
        buf_char(&b, rc ? 'E' : 'T');
        json_quote(&b, rc ? e.text : t.data, rc ? strlen(e.text) : t.n);
        printf("%s\n", b.data);
        fflush(stdout);
        text_free(&t);
        buf_free(&b);
        arena_free(&a);
    }
}

int main(int argc, char **argv) {
    char *source = NULL, *conv = NULL;
    size_t n, m;
    struct error e = {0};
    struct arena a = {0};
    struct json vars;
    struct text t = {0};
    if (argc == 2 && !strcmp(argv[1], "-")) return serve();
    if (argc != 3) return fprintf(stderr, "usage: render_main TEMPLATE CONVERSATION.json | -\n"), 2;
    int rc = file_read(argv[1], 64 << 20, &source, &n, &e);
    if (!rc) rc = file_read(argv[2], 64 << 20, &conv, &m, &e);
    if (!rc) rc = json_parse(&a, conv, m, 0, argv[2], &vars, &e);
    if (!rc) rc = render(source, n, &vars, &t, &e);
    if (rc) fprintf(stderr, "%s\n", e.text);
    else fwrite(t.data, 1, t.n, stdout);
    text_free(&t);
    arena_free(&a);
    mem_free(source);
    mem_free(conv);
    return rc != 0;
}
