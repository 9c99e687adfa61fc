#include "cli/progress.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cli/out.h"
#include "cli/style.h"
#include "cli/term.h"
#include "engine/base/buf.h"
#include "engine/base/clock.h"

static struct {
    bool terminal, color, quiet, shown, held;
    double begun, drawn, told;
    double share, left, most; /* as last reported; most: highest share drawn */
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
    filter_add(&f, text, strlen(text), &clean); /* sanitized first: its width must be that of the output */
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
    p.told = p.most = 0;
    if (!p.held) draw(text);
    pthread_mutex_unlock(&lock);
}

static void time_text(char *out, size_t cap, double s) {
    if (s < 90) snprintf(out, cap, "%.0f s left", s < 1 ? 1 : s);
    else if (s < 5400) snprintf(out, cap, "%.0f min left", s / 60);
    else snprintf(out, cap, "%.1f h left", s / 3600);
}

/* Draws the bar, extrapolated from the last report: reports can be 15 s apart (a streamed layer). The bar moves at the expected
 * speed, slower towards the end, and never back. */
static void draw_bar(double now) {
    char text[256], left[32], bar[32] = "";
    double since = now - p.told, on = p.left > 0 ? since / (since + p.left) : 0, share = p.share + (1 - p.share) * on;
    if (share < p.most) share = p.most;
    p.most = share;
    time_text(left, sizeof left, p.left - since);
    int full = (int)(share * 20);
    for (int i = 0; i < 20; i++) memcpy(bar + i, i < full ? "#" : "-", 2);
    snprintf(text, sizeof text, "%s [%s] %.0f %%  %s", p.what, bar, share * 100, p.left >= 0 ? left : "");
    draw(text);
}

void progress_update(const char *what, double share, double left_s) {
    if (!p.terminal || p.quiet || p.held) return;
    pthread_mutex_lock(&lock);
    double now = clock_now();
    if (!p.begun) p.begun = now;
    double since = now - p.begun;
    if (what && strcmp(what, p.what)) {
        snprintf(p.what, sizeof p.what, "%s", what);
        p.most = 0;
    }
    p.share = share < 0 ? 0 : share > 1 ? 1 : share;
    p.left = left_s >= 0 || p.share <= 0.01 ? left_s : since * (1 - p.share) / p.share;
    p.told = now;
    if (since >= 1 && (!p.shown || now - p.drawn >= 0.1)) draw_bar(now);
    pthread_mutex_unlock(&lock);
}

void progress_tick(void) {
    if (!p.shown || p.held) return;
    pthread_mutex_lock(&lock);
    double now = clock_now();
    char text[128];
    if (now - p.begun >= 1 && now - p.drawn >= 0.25) {
        snprintf(text, sizeof text, "%s … %.0f s", p.what, now - p.begun);
        if (p.told > p.begun) draw_bar(now);
        else draw(text); /* only the elapsed time is known */
    }
    pthread_mutex_unlock(&lock);
}

void progress_clear(void) {
    pthread_mutex_lock(&lock);
    clear_locked();
    pthread_mutex_unlock(&lock);
}
bool progress_shown(void) { return p.shown; }

/* Prints lines broken between words, or unchanged without memory. */
static void put_lines(const char *text, size_t n) {
    struct style s;
    struct buf out = {0};
    int rows, cols;
    term_size(&rows, &cols);
    style_init(&s, cols, false);
    style_add(&s, text, n, &out);
    style_flush(&s, &out);
    if (!p.terminal || out.failed) out_err(text, n);
    else if (out.len) out_draw(2, out.data, out.len);
    style_free(&s);
    buf_free(&out);
}

void progress_say(const char *text) {
    pthread_mutex_lock(&lock);
    size_t n = strlen(text), had = p.queue.len;
    while (n && text[n - 1] == '\n') n--;
    if (p.held && (buf_add(&p.queue, text, n) || buf_char(&p.queue, '\n'))) p.queue.len = had;
    if (!p.held || p.queue.len == had) { /* no memory to queue it: print it at once */
        clear_locked();
        put_lines(text, n);
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
    if (p.queue.len) put_lines(p.queue.data, p.queue.len);
    buf_free(&p.queue);
    pthread_mutex_unlock(&lock);
}
