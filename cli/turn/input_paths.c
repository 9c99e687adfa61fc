#include "cli/turn/input_paths.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/options/paths.h"
#include "cli/options/words.h"
#include "cli/report.h"

enum { DEPTH_MAX = 16, PROBE_BYTES = 4096 };

void input_paths_free(struct input_paths *l) {
    for (size_t i = 0; i < l->n; i++) {
        mem_free(l->v[i].path);
        mem_free(l->v[i].name);
    }
    mem_free(l->v);
    *l = (struct input_paths){0};
}

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the list of files"); }

static int add_file(struct input_paths *l, const char *path, const char *name, struct error *e) {
    struct input_path f = {mem_strdup(path), mem_strdup(name)};
    if (!f.path || !f.name || mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) {
        mem_free(f.path);
        mem_free(f.name);
        return no_memory(e);
    }
    l->v[l->n++] = f;
    return 0;
}

static const char *last_component(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* True if the beginning of a regular file is text. */
static bool is_text_file(const char *path) {
    char head[PROBE_BYTES];
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    ssize_t n = read(fd, head, sizeof head);
    close(fd);
    struct buf raw = {.data = head, .len = n > 0 ? (size_t)n : 0};
    return n > 0 && !input_check_text(path, &raw, false, NULL);
}

struct walk {
    struct input_paths *list;
    const char *root; /* the given directory without symbolic links */
    size_t skip;      /* bytes of a path that its name omits */
    size_t most;      /* files of the list, at most */
};

/* True if a symbolic link leads out of the given directory, where it could make any file of the user a document. */
static bool leads_out(const struct walk *w, const char *link) {
    char *const target = realpath(link, NULL);
    const size_t n = strlen(w->root);
    const bool is_inside = target && !strncmp(target, w->root, n) && (target[n] == '/' || w->root[n - 1] == '/');
    free(target);
    return !is_inside;
}

/* Adds the text files below dir. */
static int add_directory(const struct walk *w, const char *dir, int depth, struct error *e) {
    struct input_paths *const l = w->list;
    struct dirent **files;
    int n = scandir(dir, &files, NULL, alphasort), rc = 0;
    if (n < 0) return error_set(e, ERR_RUNTIME, "%s: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[PATHS_MAX];
        bool hidden = *files[i]->d_name == '.';
        if (!rc && !hidden && !file_join(path, sizeof path, dir, files[i]->d_name, NULL)) {
            struct stat st;
            if (lstat(path, &st)) rc = 0; /* removed since scandir() */
            else if (S_ISDIR(st.st_mode)) rc = depth < DEPTH_MAX ? add_directory(w, path, depth + 1, e) : 0;
            else if (S_ISLNK(st.st_mode) && leads_out(w, path)) l->n_links_skipped++;
            else if (!is_text_file(path)) l->n_skipped++;
            else if (l->n >= w->most)
                rc = error_set(e, ERR_RUNTIME, "%s: more than %d text files; name a smaller directory or a pattern",
                               dir, INPUT_PATHS_MAX);
            else rc = add_file(l, path, path + w->skip, e);
        }
        free(files[i]);
    }
    free(files);
    return rc;
}

static int add_existing(struct input_paths *l, char *path, struct error *e) {
    size_t n_before = l->n;
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/';) path[--n] = 0;
    if (!file_is_dir(path)) return add_file(l, path, last_component(path), e);
    char *const root = realpath(path, NULL);
    if (!root) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    const struct walk w = {
        .list = l, .root = root, .skip = (size_t)(last_component(path) - path), .most = n_before + INPUT_PATHS_MAX};
    int rc = add_directory(&w, path, 0, e);
    free(root);
    if (!rc && l->n == n_before)
        return error_set(e, ERR_RUNTIME, "%s: a directory without text files%s", path,
                         l->n_links_skipped ? "; symbolic links that lead out of it are not followed" : "");
    return rc;
}

void input_paths_note_skipped(const struct input_paths *l) {
    if (l->n_skipped == 1) report_note("a file that is not text was skipped");
    else if (l->n_skipped) report_note("%zu files that are not text were skipped", l->n_skipped);
    if (l->n_links_skipped == 1)
        report_note("a symbolic link that leads out of its directory was skipped; to attach the file, name it");
    else if (l->n_links_skipped)
        report_note("%zu symbolic links that lead out of their directory were skipped; to attach such a file, name it",
                    l->n_links_skipped);
}

static int add_matches(struct input_paths *l, const char *pattern, struct error *e) {
    glob_t g;
    char path[PATHS_MAX];
    int rc = glob(pattern, 0, NULL, &g) == GLOB_NOSPACE ? no_memory(e) : 0;
    if (!rc && g.gl_pathc > INPUT_PATHS_MAX)
        rc = error_set(e, ERR_RUNTIME, "%s: matches %zu files; at most %d can be attached at once", pattern, g.gl_pathc,
                       INPUT_PATHS_MAX);
    if (!rc && !g.gl_pathc) rc = error_set(e, ERR_RUNTIME, "%s: no such file", pattern);
    for (size_t i = 0; i < g.gl_pathc && !rc; i++) {
        snprintf(path, sizeof path, "%s", g.gl_pathv[i]);
        if (!file_is_dir(path)) rc = add_file(l, path, last_component(path), e);
    }
    globfree(&g);
    return rc;
}

int input_paths_add(struct input_paths *l, const char *given, struct error *e) {
    char path[PATHS_MAX];
    struct stat st;
    if (!strcmp(given, "-") || !strncmp(given, "ember:", 6)) return add_file(l, given, given, e);
    if (paths_expand(given, path, sizeof path)) return error_set(e, ERR_USAGE, "%.100s: the path is too long", given);
    if (!stat(path, &st)) return add_existing(l, path, e);
    int why = errno;
    if (strpbrk(path, "*?[")) return add_matches(l, path, e);
    return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(why));
}

int input_paths_add_words(struct input_paths *l, const char *text, struct error *e) {
    char path[PATHS_MAX];
    struct stat st;
    bool closed;
    if (!paths_expand(text, path, sizeof path) && !stat(path, &st)) return input_paths_add(l, text, e);
    char *word = mem_alloc(strlen(text) + 1);
    if (!word) return no_memory(e);
    int rc = 0;
    while (!rc && words_next(&text, word, &closed)) rc = input_paths_add(l, word, e);
    mem_free(word);
    return rc;
}
