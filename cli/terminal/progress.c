#include "cli/terminal/progress.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "cli/options/trim.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/markdown.h"
#include "cli/terminal/out.h"
#include "cli/terminal/term.h"

static struct {
    bool terminal, color, quiet, shown, held;
    double begun_at, drawn_at, reported_at;
    double share, left_s, max_share; /* share, left_s: as last reported; max_share: highest share drawn */
    char what[64];
    struct buf queue;
} progress;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void progress_init(bool terminal, bool color, bool quiet) {
    progress.terminal = terminal && !term_dumb();
    progress.color = color;
    progress.quiet = quiet;
}

static void draw_line(const char *text) {
    struct sanitizer f = {0};
    struct buf clean = {0};
    int rows, cols;
    term_size(&rows, &cols);
    sanitize_add(&f, text, strlen(text), &clean); /* sanitized first: its width must be that of the output */
    out_draw(2, "\r\033[2m", progress.color ? 5 : 1);
    if (clean.data) out_err(clean.data, columns_fit(clean.data, clean.len, cols - 1));
    out_draw(2, "\033[0m\033[K" + (progress.color ? 0 : 4), progress.color ? 7 : 3);
    buf_free(&clean);
    progress.shown = true;
    progress.drawn_at = clock_now();
}

static void clear_locked(void) {
    if (progress.shown) out_draw(2, "\r\033[K", 4);
    progress.shown = false;
}

void progress_begin(const char *what) {
    if (!progress.terminal || progress.quiet) return;
    pthread_mutex_lock(&lock);
    char text[96];
    snprintf(progress.what, sizeof progress.what, "%s", what);
    snprintf(text, sizeof text, "%s …", progress.what);
    progress.begun_at = clock_now();
    progress.reported_at = progress.max_share = 0;
    if (!progress.held) draw_line(text);
    pthread_mutex_unlock(&lock);
}

/* Draws the bar, extrapolated from the last report: reports can be 15 s apart (a streamed layer). The bar moves at the
 * expected speed, slower towards the end, and never back. */
static void draw_bar(double now) {
    enum { BAR_CHARS = 20 };
    char text[256], left[32], bar[BAR_CHARS + 1] = "";
    double since = now - progress.reported_at, advance = progress.left_s > 0 ? since / (since + progress.left_s) : 0,
           share = progress.share + (1 - progress.share) * advance;
    if (share < progress.max_share) share = progress.max_share;
    progress.max_share = share;
    amount_duration(fmax(progress.left_s - since, 1), left, sizeof left);
    int full = (int)(share * BAR_CHARS);
    for (int i = 0; i < BAR_CHARS; i++) memcpy(bar + i, i < full ? "#" : "-", 2);
    snprintf(text, sizeof text, "%s [%s] %.0f %%  %s%s", progress.what, bar, share * 100,
             progress.left_s >= 0 ? left : "", progress.left_s >= 0 ? " left" : "");
    draw_line(text);
}

void progress_update(const char *what, double share, double left_s) {
    if (!progress.terminal || progress.quiet) return;
    pthread_mutex_lock(&lock);
    if (progress.held) goto out;
    double now = clock_now();
    if (!progress.begun_at) progress.begun_at = now;
    double since = now - progress.begun_at;
    if (what && strcmp(what, progress.what)) {
        snprintf(progress.what, sizeof progress.what, "%s", what);
        progress.max_share = 0;
    }
    progress.share = share < 0 ? 0 : share > 1 ? 1 : share;
    progress.left_s = left_s >= 0 || progress.share <= 0.01 ? left_s : since * (1 - progress.share) / progress.share;
    progress.reported_at = now;
    if (since >= 1 && (!progress.shown || now - progress.drawn_at >= 0.1)) draw_bar(now);
out:
    pthread_mutex_unlock(&lock);
}

void progress_tick(void) {
    pthread_mutex_lock(&lock);
    double now = clock_now();
    char text[128];
    if (progress.shown && !progress.held && now - progress.begun_at >= 1 && now - progress.drawn_at >= 0.25) {
        snprintf(text, sizeof text, "%s … %.0f s", progress.what, now - progress.begun_at);
        if (progress.reported_at > progress.begun_at) draw_bar(now);
        else draw_line(text); /* only the elapsed time is known */
    }
    pthread_mutex_unlock(&lock);
}

void progress_clear(void) {
    pthread_mutex_lock(&lock);
    clear_locked();
    pthread_mutex_unlock(&lock);
}
bool progress_shown(void) {
    pthread_mutex_lock(&lock);
    const bool shown = progress.shown;
    pthread_mutex_unlock(&lock);
    return shown;
}

/* Prints lines broken between words, or unchanged without memory. */
static void print_wrapped(const char *text, size_t n) {
    struct markdown s;
    struct buf out = {0};
    int rows, cols;
    term_size(&rows, &cols);
    markdown_init(&s, cols, false);
    markdown_add(&s, text, n, &out);
    markdown_flush(&s, &out);
    if (!progress.terminal || out.failed) out_err(text, n);
    else if (out.len) out_draw(2, out.data, out.len);
    markdown_free(&s);
    buf_free(&out);
}

void progress_print(const char *text) {
    pthread_mutex_lock(&lock);
    size_t n = strlen(text), n_before = progress.queue.len;
    n = trim_end(text, n, "\n");
    if (progress.held && (buf_add(&progress.queue, text, n) || buf_char(&progress.queue, '\n')))
        progress.queue.len = n_before;
    if (!progress.held || progress.queue.len == n_before) { /* no memory to queue it: print it at once */
        clear_locked();
        print_wrapped(text, n);
        out_err("\n", 1);
    }
    pthread_mutex_unlock(&lock);
}

void progress_hold(bool hold) {
    pthread_mutex_lock(&lock);
    progress.held = hold;
    pthread_mutex_unlock(&lock);
    if (!hold) progress_flush();
}
bool progress_has_held(void) {
    pthread_mutex_lock(&lock);
    const bool has_held = progress.queue.len != 0;
    pthread_mutex_unlock(&lock);
    return has_held;
}
void progress_flush(void) {
    pthread_mutex_lock(&lock);
    if (progress.queue.len) print_wrapped(progress.queue.data, progress.queue.len);
    buf_free(&progress.queue);
    pthread_mutex_unlock(&lock);
}
