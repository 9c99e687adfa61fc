/* Simulates file systems, for LD_PRELOAD: a slow disk, whose fsync waits until the file that $SLOW_SYNC names exists,
 * and one without locks, if $NO_LOCKS is set, or without unnamed files, if $NO_TMPFILE is. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fsync(int fd) {
    const char *gate = getenv("SLOW_SYNC");
    while (gate && access(gate, F_OK)) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return (int)syscall(SYS_fsync, fd);
}

int flock(int fd, int operation) {
    if (!getenv("NO_LOCKS")) return (int)syscall(SYS_flock, fd, operation);
    errno = ENOLCK;
    return -1;
}

int openat(int dir, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    const unsigned mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, unsigned) : 0;
    va_end(args);
    if ((flags & O_TMPFILE) != O_TMPFILE || !getenv("NO_TMPFILE"))
        return (int)syscall(SYS_openat, dir, path, flags, mode);
    errno = EOPNOTSUPP;
    return -1;
}
