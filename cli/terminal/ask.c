#include "cli/terminal/ask.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <termios.h>
#include <unistd.h>

#include "cli/options/trim.h"
#include "cli/terminal/out.h"
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

bool ask_text(const char *question, char *out, size_t cap) {
    ask_drop_typed();
    out_err(question, strlen(question));
    return ask_line(out, cap);
}

bool ask_yes(const char *question) {
    char answer[64];
    return ask_text(question, answer, sizeof answer) && (!strcasecmp(answer, "y") || !strcasecmp(answer, "yes"));
}

void ask_drop_typed(void) { tcflush(0, TCIFLUSH); }
