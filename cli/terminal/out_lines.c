#include "cli/terminal/out_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/terminal/out.h"
#include "cli/terminal/sig.h"

/* Only the thread of the terminal uses these. */
static bool locked;
static struct buf held; /* text that waits for the lock */

/* Sets or clears the lock. A file that cannot be locked counts as locked: its text is written at once. */
static bool set_lock(short type, bool waits) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET};
    struct stat st;
    if (fstat(1, &st) || !(S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode))) return true;
    while (fcntl(1, waits ? F_SETLKW : F_SETLK, &l)) {
        if (errno == EAGAIN || errno == EACCES) return false;
        if (errno != EINTR || sig_interrupted() || sig_terminated()) return true;
    }
    return true;
}

static int write_held(void) {
    int rc = held.len ? out_write(held.data, held.len) : 0;
    buf_free(&held);
    return rc;
}

int out_lines_write(const char *data, size_t n) {
    if (!n) return 0;
    if (!locked) locked = set_lock(F_WRLCK, false);
    if (!locked) {
        if (!buf_add(&held, data, n)) return 0;
        held.failed = false;
        locked = set_lock(F_WRLCK, true); /* no memory: wait instead */
    }
    int rc = write_held();
    if (!rc) rc = out_write(data, n);
    if (data[n - 1] != '\n') return rc;
    set_lock(F_UNLCK, false);
    locked = false;
    return rc;
}

int out_lines_end(void) {
    if (held.len && !locked) locked = set_lock(F_WRLCK, true);
    int rc = write_held();
    if (locked) set_lock(F_UNLCK, false);
    locked = false;
    return rc;
}
