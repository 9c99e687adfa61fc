#include "cli/term.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct termios before, ours;
static volatile bool known, raw;
static volatile int early;

/* bracketed paste: a pasted line end does not send the line */
static const char paste_on[] = "\033[?2004h", paste_off[] = "\033[?2004l";

static void put(const char *s) {
    if (write(2, s, strlen(s)) < 0) return;
}

int term_raw(void) {
    if (raw) return 0;
    if (!known) {
        if (tcgetattr(0, &before)) return -1;
        known = true;
        atexit(term_restore);
    }
    struct termios t = before;
    t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP);
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    int waiting = 0;
    ours = t;
    if (tcsetattr(0, TCSADRAIN, &t)) return -1;
    if (!ioctl(0, FIONREAD, &waiting)) early = waiting; /* read after the switch: what arrives in between still has line feeds */
    raw = true;
    if (!term_dumb()) put(paste_on);
    return 0;
}

void term_restore(void) {
    if (!raw) return;
    raw = false;
    tcsetattr(0, TCSADRAIN, &before);
    if (!term_dumb()) put(paste_off);
}

void term_again(void) {
    if (!raw || tcgetpgrp(0) != getpgrp()) return; /* in the background the terminal belongs to another job */
    tcsetattr(0, TCSADRAIN, &ours);
    if (!term_dumb()) put(paste_on);
}

bool term_is_raw(void) { return raw; }
int term_typed_early(void) {
    int n = early;
    early = 0;
    return n;
}

void term_size(int *rows, int *cols) {
    struct winsize w = {0};
    bool got = !ioctl(1, TIOCGWINSZ, &w) || !ioctl(2, TIOCGWINSZ, &w) || !ioctl(0, TIOCGWINSZ, &w);
    *rows = got && w.ws_row ? w.ws_row : 24;
    *cols = got && w.ws_col ? w.ws_col : 80;
}

bool term_dumb(void) {
    static int dumb = -1;
    if (dumb < 0) {
        const char *t = getenv("TERM");
        dumb = !t || !*t || !strcmp(t, "dumb");
    }
    return dumb;
}
