/* Ends what a child has left running outside its process group. This process is the reaper of all its descendants: an
 * orphan becomes its child, and is found in /proc by its parent. A variable in the environment tells to which child an
 * orphan belongs; one without it has cleared its environment. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/tools/child.h"

#define NAME "_HEARTH_CHILD"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct child *running; /* under the lock, as is last_number */
static unsigned last_number;
static unsigned long long begun; /* clock ticks since boot, as in /proc */

void child_orphans_begin(void) {
    char mark[CHILD_MARK_BYTES];
    struct timespec now;
    child_orphans_mark(0, mark);
    clock_gettime(CLOCK_BOOTTIME, &now);
    begun = ((unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000) *
            (unsigned long long)sysconf(_SC_CLK_TCK) / 1000;
    /* what is no tool, such as the editor, has this mark, and may leave something */
    if (!prctl(PR_SET_CHILD_SUBREAPER, 1)) setenv(NAME, mark + sizeof NAME, 1);
}

void child_orphans_mark(unsigned number, char out[CHILD_MARK_BYTES]) {
    snprintf(out, CHILD_MARK_BYTES, NAME "=%d.%u", (int)getpid(), number);
}

unsigned child_orphans_number(void) {
    pthread_mutex_lock(&lock);
    const unsigned number = ++last_number;
    pthread_mutex_unlock(&lock);
    return number;
}

void child_orphans_add(struct child *c) {
    pthread_mutex_lock(&lock);
    c->next = running;
    running = c;
    pthread_mutex_unlock(&lock);
}

void child_orphans_started(struct child *c, pid_t pid) {
    pthread_mutex_lock(&lock);
    c->pid = pid;
    pthread_mutex_unlock(&lock);
}

void child_orphans_remove(struct child *c) {
    pthread_mutex_lock(&lock);
    struct child **at = &running;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    pthread_mutex_unlock(&lock);
}

/* Reads the environment of a process and returns whether it has the mark. */
static bool has_mark(const char *environment, size_t n, unsigned number) {
    char mark[CHILD_MARK_BYTES];
    child_orphans_mark(number, mark);
    for (size_t at = 0; at < n; at += strlen(environment + at) + 1)
        if (!strcmp(environment + at, mark)) return true;
    return false;
}

static size_t read_proc(const char *pid, const char *what, char *out, size_t cap) {
    char path[64];
    size_t n = 0;
    snprintf(path, sizeof path, "/proc/%.20s/%s", pid, what);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n < cap - 1) {
        const ssize_t k = read(fd, out + n, cap - 1 - n);
        if (k <= 0) break;
        n += (size_t)k;
    }
    if (fd >= 0) close(fd);
    out[n] = 0;
    return n;
}

/* Returns whether a process is an orphan, of no child that still runs. Tools lead sessions of their own, so a process
 * in ours, such as the editor, is none, and neither is one that is older than the first tool: a shell that became this
 * process by exec may have started it. */
static bool is_orphan(const char *name, char *environment, size_t cap) {
    char stat[1024], state;
    int parent, group, session;
    unsigned long long start;
    const char *fields = read_proc(name, "stat", stat, sizeof stat) ? strrchr(stat, ')') : NULL;
    if (!fields || sscanf(fields + 1, " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                          &state, &parent, &group, &session, &start) != 5)
        return false;
    if (parent != getpid() || session == getsid(0) || start < begun) return false;
    const size_t n = state == 'Z' ? 0 : read_proc(name, "environ", environment, cap);
    bool is_kept = has_mark(environment, n, 0);
    pthread_mutex_lock(&lock);
    for (struct child *c = running; c && !is_kept; c = c->next)
        is_kept = c->pid == atoi(name) || has_mark(environment, n, c->number) || (!c->pid && state == 'Z');
    pthread_mutex_unlock(&lock);
    return !is_kept;
}

/* Kills the orphans and waits for them. Returns their number; their own children become orphans. */
static int end_once(char *environment, size_t cap) {
    enum { STEP_US = 1000, STEPS = 200 };
    DIR *d = opendir("/proc");
    int n = 0;
    for (struct dirent *it; d && (it = readdir(d));) {
        if (!isdigit((unsigned char)*it->d_name) || !is_orphan(it->d_name, environment, cap)) continue;
        const pid_t pid = atoi(it->d_name);
        kill(pid, SIGKILL);
        for (int i = 0; i < STEPS && !waitpid(pid, NULL, WNOHANG); i++) usleep(STEP_US);
        n++;
    }
    if (d) closedir(d);
    return n;
}

void child_orphans_end(void) {
    enum { ROUNDS = 20, ENVIRONMENT_BYTES = 256 << 10 };
    if (!begun) return; /* none becomes a child of this process, whose own may be older than it is */
    char *environment = mem_alloc(ENVIRONMENT_BYTES);
    for (int i = 0; environment && i < ROUNDS && end_once(environment, ENVIRONMENT_BYTES); i++) {
    }
    mem_free(environment);
}
