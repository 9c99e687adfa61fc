/* Commands about the documents of the next question. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/attachments.h"
#include "cli/chat/command.h"
#include "cli/chat/screen.h"
#include "cli/terminal/amount.h"

/* The size of a file, and what the model reads of an image. */
static const char *size_of(const struct attachment *f, char *out, size_t cap) {
    char size[32], tokens[32];
    amount_bytes(f->bytes, size, sizeof size);
    if (f->tokens)
        snprintf(out, cap, "%s, %d x %d pixels, %s", size, f->width, f->height,
                 amount_count(f->tokens, "token", tokens, sizeof tokens));
    else snprintf(out, cap, "%s", size);
    return out;
}
static void print_attachment(struct repl *r, const struct attachments *l, size_t i) {
    char size[120];
    screen_print(r, "  %zu  %s, %s", i + 1, l->v[i].name, size_of(&l->v[i], size, sizeof size));
}

void command_read(struct repl *r, const char *arg) {
    struct attachments *l = &r->active->attached;
    struct error e;
    char size[32], one[120];
    size_t n_before = l->n, bytes_before = attachments_bytes(l);
    if (!*arg)
        screen_print(r, "/read FILE attaches FILE to your next question; also several files, patterns and directories");
    else if (!strcmp(arg, "-")) screen_print(r, "cannot read stdin: it is the terminal");
    else if (attachments_add(r->app, r->active, arg, &e)) screen_print(r, "%s", e.text);
    else {
        amount_bytes(attachments_bytes(l) - bytes_before, size, sizeof size);
        const size_t n_older = attachments_drop_older(l, n_before);
        const char *instead = !n_older       ? ""
                              : n_older == 1 ? ", in place of what was read before"
                                             : ", some in place of what was read before";
        n_before -= n_older;
        for (size_t i = n_before; i < l->n && l->n != n_before + 1; i++) print_attachment(r, l, i);
        if (l->n == n_before + 1)
            screen_print(r, "%s: %s attached to your next question%s", l->v[n_before].name,
                         size_of(&l->v[n_before], one, sizeof one), instead);
        else screen_print(r, "%zu files, %s attached to your next question%s", l->n - n_before, size, instead);
    }
}

void command_attachments(struct repl *r, const char *arg) {
    const struct attachments *l = &r->active->attached;
    for (size_t i = 0; i < l->n; i++) print_attachment(r, l, i);
    screen_print(r, l->n ? "/detach NAME drops one, /detach all of them"
                         : "nothing is attached; /read FILE attaches a file to your next question");
}

/* Finds an attachment by its number or name. Returns l->n if there is none. */
static size_t find_attachment(const struct attachments *l, const char *arg) {
    char *end;
    unsigned long number = strtoul(arg, &end, 10);
    size_t i = 0;
    while (i < l->n && strcmp(l->v[i].name, arg)) i++;
    return i == l->n && !*end && number >= 1 && number <= l->n ? number - 1 : i;
}

void command_detach(struct repl *r, const char *arg) {
    struct attachments *l = &r->active->attached;
    size_t i = find_attachment(l, arg);
    if (!l->n) screen_print(r, "nothing is attached; /read FILE attaches a file to your next question");
    else if (*arg && i == l->n) screen_print(r, "no attachment '%s'; /attachments lists them", arg);
    else if (*arg) {
        screen_print(r, "%s: no longer attached", l->v[i].name);
        attachments_remove(l, i);
    } else {
        screen_print(r, "%zu file%s no longer attached", l->n, l->n == 1 ? " is" : "s are");
        attachments_truncate(l, 0);
    }
}
