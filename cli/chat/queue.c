/* Lines entered while an answer runs. They are sent in order after it. */
#include "cli/chat/queue.h"

#include <string.h>

#include "cli/chat/screen.h"

void queue_add_to_history(struct repl *r, const char *text, size_t n) {
    bool is_new_line = r->line.history_index == r->history.n; /* not an entry recalled from the history */
    history_add(&r->history, text, n);
    if (is_new_line) r->line.history_index = r->history.n;
}

void queue_add(struct repl *r, const char *text, size_t n) {
    char *copy = mem_grow(&r->queue, &r->cap_queue, r->n_queue + 1, sizeof *r->queue) ? NULL : mem_strndup(text, n);
    if (copy) r->queue[r->n_queue++] = copy;
    else line_hint(&r->line, "no memory; the line is lost");
}

void queue_put_first(struct repl *r, const char *text) {
    const size_t n = r->n_queue;
    queue_add(r, text, strlen(text));
    if (r->n_queue == n) return;
    char *last = r->queue[n];
    memmove(r->queue + 1, r->queue, n * sizeof *r->queue);
    r->queue[0] = last;
}

char *queue_take(struct repl *r) {
    char *text = r->queue[0];
    memmove(r->queue, r->queue + 1, --r->n_queue * sizeof *r->queue);
    return text;
}

void queue_discard(struct repl *r) {
    if (r->n_queue)
        screen_print(r, "(%zu queued %s not sent; Arrow-Up recalls %s)", r->n_queue,
                     r->n_queue > 1 ? "lines were" : "line was", r->n_queue > 1 ? "them" : "it");
    while (r->n_queue) {
        char *text = queue_take(r);
        queue_add_to_history(r, text, strlen(text));
        mem_free(text);
    }
}
