#include "cli/terminal/ask.h"

#include <errno.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include "cli/options/trim.h"
#include "cli/terminal/sig.h"

bool ask_line(char *out, size_t cap) {
    struct pollfd fds[2] = {{.fd = 0, .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}};
    ssize_t n;
    do {
        while (poll(fds, 2, -1) < 0 && errno == EINTR) {
        }
        sig_drain();
        if (sig_interrupted() || sig_terminated()) return false;
    } while (!fds[0].revents);
    do n = read(0, out, cap - 1);
    while (n < 0 && errno == EINTR);
    if (n <= 0) return false;
    out[trim_end(out, (size_t)n, " \t\r\n")] = 0;
    return true;
}

void ask_drop_typed(void) { tcflush(0, TCIFLUSH); }
