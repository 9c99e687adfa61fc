/* Simulates a slow disk, for LD_PRELOAD: fsync waits until the file that $SLOW_SYNC names exists. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int fsync(int fd) {
    const char *gate = getenv("SLOW_SYNC");
    while (gate && access(gate, F_OK)) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    return (int)syscall(SYS_fsync, fd);
}
