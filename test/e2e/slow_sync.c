/* Simulates file systems, for LD_PRELOAD: a slow disk, whose fsync waits until the file that $SLOW_SYNC names exists,
 * and one without locks, if $NO_LOCKS is set. */
#include <errno.h>
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
