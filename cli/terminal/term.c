#include "cli/terminal/term.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct termios saved_mode, raw_mode;
static bool mode_saved;
static _Atomic bool is_raw; /* also read by signal handlers, on any thread */
static _Atomic int n_early;

/* bracketed paste: a pasted line end does not send the line; and reports of the focus */
static const char reports_on[] = "\033[?2004h\033[?1004h", reports_off[] = "\033[?2004l\033[?1004l";

static void write_escape(const char *s) {
    if (write(2, s, strlen(s)) < 0) return;
}

int term_raw(void) {
    if (is_raw) return 0;
    if (!mode_saved) {
        if (tcgetattr(0, &saved_mode)) return -1;
        mode_saved = true;
        atexit(term_restore);
    }
    struct termios t = saved_mode;
    t.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP);
    t.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    t.c_cc[VMIN] = 1;
    t.c_cc[VTIME] = 0;
    int waiting = 0;
    raw_mode = t;
    if (tcsetattr(0, TCSADRAIN, &t)) return -1;
    /* read after the switch: what arrives in between still has line feeds */
    if (!ioctl(0, FIONREAD, &waiting)) n_early = waiting;
    is_raw = true;
    if (!term_dumb()) write_escape(reports_on);
    return 0;
}

void term_restore(void) {
    if (!atomic_exchange(&is_raw, false)) return;
    tcsetattr(0, TCSADRAIN, &saved_mode);
    if (!term_dumb()) write_escape(reports_off);
}

void term_restore_raw(void) {
    if (!is_raw || tcgetpgrp(0) != getpgrp()) return; /* in the background the terminal belongs to another job */
    tcsetattr(0, TCSADRAIN, &raw_mode);
    if (!term_dumb()) write_escape(reports_on);
}

bool term_is_raw(void) { return is_raw; }
int term_typed_early(void) { return atomic_exchange(&n_early, 0); }

void term_size(int *rows, int *cols) {
    struct winsize w = {0};
    bool got = !ioctl(1, TIOCGWINSZ, &w) || !ioctl(2, TIOCGWINSZ, &w) || !ioctl(0, TIOCGWINSZ, &w);
    *rows = got && w.ws_row ? w.ws_row : 24;
    *cols = got && w.ws_col ? w.ws_col : 80;
}

bool term_dumb(void) {
    static _Atomic int dumb = -1;
    if (dumb < 0) {
        const char *t = getenv("TERM");
        dumb = !t || !*t || !strcmp(t, "dumb");
    }
    return dumb;
}
