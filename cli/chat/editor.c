/* Ctrl-G: edits the line in the user's editor. */
#include "cli/chat/editor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/chat/screen.h"
#include "cli/options/trim.h"
#include "cli/terminal/out.h"
#include "cli/terminal/term.h"

extern char **environ;

static int run_editor(const char *path) {
    /* the shell splits EDITOR="code -w" */
    char *argv[] = {"sh", "-c", "exec ${VISUAL:-${EDITOR:-vi}} \"$1\"", "sh", (char *)path, NULL};
    posix_spawnattr_t attr;
    sigset_t defaults;
    pid_t pid;
    int status = -1;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    sigaddset(&defaults, SIGTSTP);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
    void (*old)(int) = signal(SIGINT, SIG_IGN); /* Ctrl-C belongs to the editor */
    if (!posix_spawnp(&pid, "sh", NULL, &attr, argv, environ))
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
    signal(SIGINT, old);
    posix_spawnattr_destroy(&attr);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void editor_open(struct repl *r) {
    enum { MAX_BYTES = 64 << 20 };
    const char *dir = getenv("TMPDIR");
    char path[PATHS_MAX];
    struct error e;
    char *data;
    size_t n;
    if (snprintf(path, sizeof path, "%s/hearth-XXXXXX.md", dir && *dir ? dir : "/tmp") >= (int)sizeof path) return;
    int fd = mkostemps(path, (int)strlen(".md"), O_CLOEXEC); /* mode 0600 */
    if (fd < 0) {
        line_hint(&r->line, "cannot create a temporary file");
        return;
    }
    struct buf text = {0};
    line_paste_expand(&r->line, &r->line.text, &text);
    int rc = text.failed ? ERR_MEMORY : file_write_all(fd, text.data, text.len);
    buf_free(&text);
    close(fd);
    line_hide(&r->line);
    screen_flush(r);
    term_restore();
    if (!rc) rc = run_editor(path);
    term_raw();
    term_size(&r->line.rows, &r->line.cols);
    if (!rc && !(rc = file_read(path, MAX_BYTES, &data, &n, &e))) {
        struct buf clean = {0};
        out_utf8(&clean, data, trim_end(data, n, "\n"));
        line_set_text(&r->line, clean.data ? clean.data : "", clean.len);
        buf_free(&clean);
        mem_free(data);
    } else {
        line_show(&r->line);
        line_hint(&r->line, "the editor failed; the line is unchanged");
    }
    unlink(path);
}
