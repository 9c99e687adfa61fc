#include "cli/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cli/out.h"
#include "cli/render.h"
#include "cli/term.h"
#include "engine/base/buf.h"
#include "engine/base/clock.h"

static struct {
    bool terminal, color, quiet, shown, held;
    double begun, drawn;
    char what[64];
    struct buf queue;
} p;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void progress_init(bool terminal, bool color, bool quiet) {
    p.terminal = terminal && !term_dumb();
    p.color = color;
    p.quiet = quiet;
}

static void draw(const char *text) {
    struct filter f = {0};
    struct buf clean = {0};
    int rows, cols;
    term_size(&rows, &cols);
    filter_add(&f, text, strlen(text), &clean); /* its width is that of what is shown */
    out_draw(2, "\r\033[2m", p.color ? 5 : 1);
    if (clean.data) out_err(clean.data, render_fit(clean.data, clean.len, cols - 1));
    out_draw(2, "\033[0m\033[K" + (p.color ? 0 : 4), p.color ? 7 : 3);
    buf_free(&clean);
    p.shown = true;
    p.drawn = clock_now();
}

static void clear_locked(void) {
    if (p.shown) out_draw(2, "\r\033[K", 4);
    p.shown = false;
}

void progress_begin(const char *what) {
    if (!p.terminal || p.quiet) return;
    pthread_mutex_lock(&lock);
    char text[96];
    snprintf(p.what, sizeof p.what, "%s", what);
    snprintf(text, sizeof text, "%s …", p.what);
    p.begun = clock_now();
    if (!p.held) draw(text);
    pthread_mutex_unlock(&lock);
}

static void time_text(char *out, size_t cap, double s) {
    if (s < 90) snprintf(out, cap, "%.0f s left", s < 1 ? 1 : s);
    else if (s < 5400) snprintf(out, cap, "%.0f min left", s / 60);
    else snprintf(out, cap, "%.1f h left", s / 3600);
}

void progress_update(const char *what, double share, double left_s) {
    if (!p.terminal || p.quiet || p.held) return;
    pthread_mutex_lock(&lock);
    double now = clock_now();
    if (!p.begun) p.begun = now;
    double since = now - p.begun;
    if (since >= 1 && (!p.shown || now - p.drawn >= 0.1)) {
        char text[256], left[32] = "", bar[64] = "";
        share = share < 0 ? 0 : share > 1 ? 1 : share;
        if (left_s < 0 && share > 0.01) left_s = since * (1 - share) / share;
        if (left_s >= 0) time_text(left, sizeof left, left_s);
        int full = (int)(share * 20);
        for (int i = 0; i < 20; i++) memcpy(bar + i, i < full ? "#" : "-", 2);
        snprintf(text, sizeof text, "%s [%s] %.0f %%  %s", what ? what : p.what, bar, share * 100, left);
        draw(text);
    }
    pthread_mutex_unlock(&lock);
}

void progress_clear(void) {
    pthread_mutex_lock(&lock);
    clear_locked();
    pthread_mutex_unlock(&lock);
}
bool progress_shown(void) { return p.shown; }

void progress_say(const char *text) {
    pthread_mutex_lock(&lock);
    size_t n = strlen(text), had = p.queue.len;
    while (n && text[n - 1] == '\n') n--;
    if (p.held && (buf_add(&p.queue, text, n) || buf_char(&p.queue, '\n'))) p.queue.len = had;
    if (!p.held || p.queue.len == had) { /* no memory to keep it: better among the edited line than lost */
        clear_locked();
        out_err(text, n);
        out_err("\n", 1);
    }
    pthread_mutex_unlock(&lock);
}

void progress_hold(bool hold) {
    pthread_mutex_lock(&lock);
    p.held = hold;
    pthread_mutex_unlock(&lock);
    if (!hold) progress_flush();
}
bool progress_waiting(void) { return p.queue.len != 0; }
void progress_flush(void) {
    pthread_mutex_lock(&lock);
    if (p.queue.len) out_err(p.queue.data, p.queue.len);
    buf_free(&p.queue);
    pthread_mutex_unlock(&lock);
}
