#pragma once
/* The files that -f and /read name: single files, patterns such as *.c, and directories. */
#include "cli/turn/input.h"

enum { INPUT_PATHS_MAX = 200 }; /* most files that one pattern or directory may give */
struct input_paths {            /* empty when zero-initialised */
    struct input_path *v;
    size_t n, cap;
    size_t n_skipped, n_links_skipped; /* in directories: files that are not text; links that lead out of them */
};
/* Appends the files that `given` names, sorted. A name that exists is never a pattern. A directory gives its text
 * files, also those of its subdirectories, without hidden ones and links that lead out of it. "~" is expanded.
 * ERR_RUNTIME: no such file, no match, more than INPUT_PATHS_MAX. */
int input_paths_add(struct input_paths *l, const char *given, struct error *e);
/* The same for words separated by blanks, which may be quoted as in a shell. A text that is the name of a file is one
 * word. */
int input_paths_add_words(struct input_paths *l, const char *text, struct error *e);
void input_paths_note_skipped(const struct input_paths *l); /* notes what directories have and the list omits */
void input_paths_free(struct input_paths *l);
