#include "cli/tools/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/options/paths.h"

extern char **environ;

int child_find_program(const char *name, struct error *e) {
    const char *path = getenv("PATH");
    char file[PATHS_MAX], dir[PATHS_MAX];
    if (strchr(name, '/'))
        return access(name, X_OK) || file_is_dir(name)
                   ? error_set(e, ERR_USAGE, "%s: no program that can be executed", name)
                   : 0;
    for (const char *at = path ? path : ""; *at; at += strspn(at, ":")) {
        const size_t n = strcspn(at, ":");
        if (n < sizeof dir) {
            memcpy(dir, at, n);
            dir[n] = 0;
            if (!file_join(file, sizeof file, dir, name, NULL) && !access(file, X_OK) && !file_is_dir(file)) return 0;
        }
        at += n;
    }
    return error_set(e, ERR_USAGE, "%s: no such program in PATH", name);
}

/* Copies the environment without the keys of servers and with the child's mark. NULL: no memory. */
static char **make_environment(char *mark) {
    static const char key[] = "HEARTH_API_KEY=", tokens[] = "HEARTH_MCP_TOKEN=";
    const size_t name = strcspn(mark, "=") + 1;
    size_t n = 0, k = 0;
    while (environ[n]) n++;
    char **copy = mem_alloc((n + 2) * sizeof *copy);
    for (size_t i = 0; copy && i < n; i++)
        if (strncmp(environ[i], key, sizeof key - 1) && strncmp(environ[i], tokens, sizeof tokens - 1) &&
            strncmp(environ[i], mark, name))
            copy[k++] = environ[i];
    if (copy) copy[k++] = mark, copy[k] = NULL;
    return copy;
}

/* Sets what the child gets: its three descriptors, its session, and the default reaction to signals. */
static int spawn(pid_t *pid, const char *const *argv, const int ends[3], int dir, char **env) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, ignored;
    sigemptyset(&none);
    sigemptyset(&ignored);
    sigaddset(&ignored, SIGPIPE);
    sigaddset(&ignored, SIGXFSZ);
    if (posix_spawn_file_actions_init(&files)) return ENOMEM;
    if (posix_spawnattr_init(&attr)) return posix_spawn_file_actions_destroy(&files), ENOMEM;
    int rc = 0;
    for (int i = 0; i < 3 && !rc; i++) rc = posix_spawn_file_actions_adddup2(&files, ends[i], i);
    if (!rc && dir) rc = posix_spawn_file_actions_addfchdir_np(&files, dir);
    if (!rc) rc = posix_spawn_file_actions_addclosefrom_np(&files, 3);
    if (!rc) rc = posix_spawnattr_setsigmask(&attr, &none);
    if (!rc) rc = posix_spawnattr_setsigdefault(&attr, &ignored);
    if (!rc) rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    if (!rc) rc = posix_spawnp(pid, argv[0], &files, &attr, (char *const *)argv, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return rc;
}

int child_start(struct child *c, const char *const *argv, int dir, struct error *e) {
    int pipes[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, rc = 0;
    const unsigned number = child_orphans_number();
    char mark[CHILD_MARK_BYTES];
    child_orphans_mark(number, mark);
    char **env = make_environment(mark);
    for (int i = 0; i < 3 && !rc; i++)
        if (pipe2(pipes[i], O_CLOEXEC)) rc = errno;
    const int theirs[3] = {pipes[0][0], pipes[1][1], pipes[2][1]};
    *c = (struct child){.in = pipes[0][1], .out = pipes[1][0], .err = pipes[2][0], .number = number};
    child_orphans_add(c);
    pid_t pid;
    if (!rc) rc = env ? spawn(&pid, argv, theirs, dir, env) : ENOMEM;
    if (!rc) child_orphans_started(c, pid);
    for (int i = 0; i < 3; i++)
        if (theirs[i] >= 0) close(theirs[i]);
    int *const ours[3] = {&c->in, &c->out, &c->err};
    for (int i = 0; i < 3; i++)
        if (rc) child_close(ours[i]);
        else fcntl(*ours[i], F_SETFL, fcntl(*ours[i], F_GETFL) | O_NONBLOCK);
    const bool no_memory = !env;
    mem_free(env);
    if (!rc) return 0;
    child_orphans_remove(c);
    c->pid = 0;
    if (no_memory) return error_set(e, ERR_MEMORY, "no memory to start %s", argv[0]);
    return error_set(e, ERR_RUNTIME, "%s: cannot be started: %s", argv[0], error_reason(rc));
}

void child_close(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

ssize_t child_read(int *fd, void *data, size_t cap) {
    ssize_t n;
    do n = read(*fd, data, cap);
    while (n < 0 && errno == EINTR);
    if (n > 0) return n;
    if (n < 0 && errno == EAGAIN) return 0;
    child_close(fd);
    return -1;
}

ssize_t child_write(int *fd, const void *data, size_t n) {
    ssize_t k;
    do k = write(*fd, data, n);
    while (k < 0 && errno == EINTR);
    if (k >= 0) return k;
    if (errno == EAGAIN) return 0;
    child_close(fd);
    return -1;
}

bool child_has_ended(const struct child *c) {
    siginfo_t info = {0};
    return !c->pid || (!waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid == c->pid);
}

static bool wait_until_ended(const struct child *c, double seconds) {
    const double until = clock_now() + seconds;
    while (!child_has_ended(c)) {
        if (clock_now() >= until) return false;
        usleep(2000);
    }
    return true;
}

int child_end(struct child *c, double grace_s) {
    enum { TERM_MS = 100, KILL_MS = 2000 };
    int status = 0;
    child_close(&c->in);
    if (!c->pid) return 0;
    if (!wait_until_ended(c, grace_s)) {
        kill(-c->pid, SIGTERM);
        wait_until_ended(c, TERM_MS / 1e3);
    }
    kill(-c->pid, SIGKILL); /* also what an ended child has left: its group exists until waitpid */
    if (wait_until_ended(c, KILL_MS / 1e3)) waitpid(c->pid, &status, 0);
    child_orphans_remove(c);
    child_orphans_end();
    c->pid = 0;
    return status;
}
