#pragma once
/* Child processes that talk over pipes. A child leads a session and a process group of its own, without a terminal. It
 * inherits no descriptor except the three pipes, and the environment without hearth's API key. No shell is involved.
 * SIGPIPE must be ignored. */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

struct child {
    pid_t pid;          /* 0: none */
    int in, out, err;   /* our ends, which do not block; -1: closed */
    unsigned number;    /* its mark; the first is 1 */
    struct child *next; /* next running child; do not move or free a child before child_end */
};
/* Finds the program in PATH, unless its name has a slash. ERR_USAGE if there is none that can be executed: for errors
 * before anything else starts. */
int child_find_program(const char *name, struct error *e);
/* Starts argv[0], found in PATH unless it has a slash, in an open directory (0: this process's). ERR_RUNTIME,
 * ERR_MEMORY; nothing remains then. */
int child_start(struct child *c, const char *const *argv, int dir, struct error *e);
void child_close(int *fd); /* closes one end, if it is open */
/* Reads what has arrived. Returns the number of bytes; 0: nothing yet; -1: the end, *fd is closed. */
ssize_t child_read(int *fd, void *data, size_t cap);
/* Writes what the pipe takes. Returns the number of bytes; -1: the child does not read any more, *fd is closed. */
ssize_t child_write(int *fd, const void *data, size_t n);
bool child_has_ended(const struct child *c); /* the child itself; its own children may still run */
/* Ends what is left of the process group: the child has grace_s to exit by itself, then SIGTERM, then SIGKILL. Also
 * ends what has left the group (child_orphans_end). Closes our ends except out and err, and returns the status as
 * waitpid gives it. */
int child_end(struct child *c, double grace_s);

/* child_orphans.c: orphans, the processes that tools leave behind. */
void child_orphans_begin(void);      /* makes them children of this process; call once, before threads start */
unsigned child_orphans_number(void); /* returns the number of the next child */
enum { CHILD_MARK_BYTES = 40 };
void child_orphans_mark(unsigned number, char out[CHILD_MARK_BYTES]); /* its variable in the environment */
void child_orphans_add(struct child *c);                              /* before c starts */
void child_orphans_started(struct child *c, pid_t pid);               /* sets c->pid */
void child_orphans_remove(struct child *c);
void child_orphans_end(void); /* kills those that belong to no running child */
