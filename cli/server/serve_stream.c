/* Answers of --serve as text: whole, or in the pieces of a stream, in the protocol of the request. */
#include <sys/socket.h>

#include "base/test_limits.h"
#include "cli/server/server.h"

/* Fills out with the answers of a request, for its protocol. */
static struct api_choice *get_choices(const struct http_request *x, struct api_choice out[static API_MAX_CHOICES]) {
    for (int i = 0; i < x->n_choices; i++)
        out[i] = (struct api_choice){.turn = &x->choices[i].turn, .calls = &x->choices[i].calls, .index = i};
    return out;
}

void serve_stream_put_whole(struct http_request *x, struct buf *out) {
    struct api_choice c[API_MAX_CHOICES];
    x->protocol->whole(out, &x->answer, get_choices(x, c), x->n_choices);
}

/* A client that is gone and one that only sends no more both end what they send. Their systems tell: the first one's
 * answers whatever it gets by a reset. False: nothing can be sent. */
static bool probe(struct http_request *x, double now) {
    static const char interim[] = "HTTP/1.1 102 Processing\r\n\r\n";
    struct api_choice c[API_MAX_CHOICES];
    x->probed_s = now;
    if (!x->replied)
        return !x->is_old_http && send(x->fd, interim, sizeof interim - 1, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
    if (x->protocol->still_here) buf_str(&x->comments, x->protocol->still_here);
    else if (x->n_choices)
        x->protocol->delta(&x->comments, &x->answer, get_choices(x, c), OUTPUT_TEXT, "", 0, SIZE_MAX);
    return true;
}

void serve_stream_break_silence(struct server *s, double now) {
    const double silent_s = SERVE_SILENT_S * 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000);
    for (struct http_request *x = s->requests; x; x = x->next) {
        if (x->half_closed && !x->local && x->suspended && x->conn && !x->hung_up && now >= x->probed_s + silent_s) {
            x->hung_up = !probe(x, now);
            if (x->hung_up || x->replied) serve_connection_wake(x);
        }
        const bool waits = x->suspended && x->conn && x->state == HTTP_REQUEST_ANSWERING && x->request.stream;
        if (!waits || !x->protocol->still_here || now < x->sent_s + silent_s) continue;
        buf_str(&x->comments, x->protocol->still_here);
        serve_connection_wake(x);
    }
}

static void put_comments(struct http_request *x) {
    if (x->comments.len) buf_add(&x->formatted, x->comments.data, x->comments.len);
    if (x->comments.failed) x->formatted.failed = true;
    x->comments.len = 0;
    if (!*x->progress_comment) return;
    buf_str(&x->formatted, x->progress_comment);
    *x->progress_comment = 0;
}

/* Sends an attached process the ids of the text so far, or -1: the earlier ids are invalid. */
static void put_ids(struct http_request *x, struct http_choice *c, bool settled) {
    const struct turn *t = &c->turn;
    if (t->stop_hit || !settled) {
        if (c->n_ids_sent) buf_str(&x->formatted, ": ids -1\n\n");
        c->n_ids_sent = 0;
        return;
    }
    if (c->n_ids_sent == t->ids.n) return;
    buf_str(&x->formatted, ": ids");
    for (; c->n_ids_sent < t->ids.n; c->n_ids_sent++) buf_fmt(&x->formatted, " %d", t->ids.data[c->n_ids_sent]);
    buf_str(&x->formatted, "\n\n");
}

size_t serve_stream_arguments(const struct http_choice *c, size_t *n) {
    size_t bytes = 0, n_complete = 0;
    const struct tool_calls *calls = tool_stream_calls(c->tool_stream, &n_complete);
    for (size_t i = 0; i < calls->n; i++) bytes += calls->v[i].arguments.len;
    *n = calls->n + n_complete;
    return bytes;
}

/* Formats what is known of an answer's calls. Those of an ended answer are complete. */
static void put_calls(struct http_request *x, struct http_choice *c, const struct api_choice *view) {
    const bool is_end = c->state == HTTP_CHOICE_DONE;
    size_t n_complete = c->calls.n;
    const struct tool_calls *calls =
        is_end || !c->tool_stream ? &c->calls : tool_stream_calls(c->tool_stream, &n_complete);
    c->calls_grew = false;
    for (size_t i = c->n_calls_ended; i < calls->n && !(i && x->request.single_tool_call); i++) {
        struct api_call_piece piece = {
            .call = &calls->v[i], .index = i, .begins = i == c->n_calls_begun, .ends = is_end || i < n_complete};
        if (!piece.begins) piece.from = c->n_arguments_sent;
        if (piece.begins || piece.ends || piece.from < piece.call->arguments.len)
            x->protocol->call(&x->formatted, &x->answer, view, &piece);
        c->n_calls_begun = i + 1;
        c->n_arguments_sent = piece.call->arguments.len;
        if (piece.ends) c->n_calls_ended = i + 1;
    }
}

static void put_text(struct http_request *x, struct http_choice *c, const struct api_choice *view) {
    for (size_t i = 0; i < c->n_generated; i++) {
        const bool is_text = c->generated[i].part == OUTPUT_TEXT;
        x->protocol->delta(&x->formatted, &x->answer, view, c->generated[i].part, c->generated[i].text.data,
                           c->generated[i].text.len, is_text ? c->n_logprobs_sent : SIZE_MAX);
        if (is_text) c->n_logprobs_sent = turn_shown_logprobs(&c->turn);
        c->generated[i].text.len = 0;
    }
    c->n_generated = 0;
}

/* Formats what an answer has generated, and its end. An attached process gets text with its ids, so that a stopped
 * answer can be continued: text waits a few tokens for what is held back. */
static void put_choice(struct http_request *x, struct http_choice *c, const struct api_choice *view) {
    enum { IDS_HELD_MOST = 8 };
    const bool settled = !c->turn.running || turn_is_settled(&c->turn);
    if (x->request.markup && !settled && c->turn.ids.n < c->n_ids_sent + IDS_HELD_MOST) return;
    /* text that was held back comes after the call that has begun: no protocol goes on with a call after it */
    if (c->n_calls_begun == c->n_calls_ended) put_text(x, c, view);
    if (x->protocol->call && !x->failed) put_calls(x, c, view);
    if (c->n_calls_begun == c->n_calls_ended || x->failed) put_text(x, c, view);
    if (x->request.markup && !c->finished) put_ids(x, c, settled);
    if (c->state != HTTP_CHOICE_DONE || c->finished || x->failed) return;
    x->protocol->finish(&x->formatted, &x->answer, view);
    c->finished = true;
}

static void put_end(struct http_request *x, const struct api_choice *choices) {
    const char *code;
    x->last_chunk_made = true;
    if (!x->failed) {
        x->protocol->end(&x->formatted, &x->answer, choices, x->n_choices);
        return;
    }
    const struct error *e = &x->failed->turn.error;
    const int status = api_status(e, &code);
    x->protocol->fail(&x->formatted, &x->answer, status, code, e->text);
}

bool serve_stream_format(struct http_request *x) {
    struct api_choice views[API_MAX_CHOICES];
    bool any = x->state == HTTP_REQUEST_DONE && !x->failed;
    x->formatted.len = x->sent_bytes = 0;
    get_choices(x, views);
    put_comments(x);
    for (int i = 0; i < x->n_choices; i++) any |= x->choices[i].n_generated > 0 || x->choices[i].calls_grew;
    if (!x->first_chunk_made && any) {
        x->protocol->begin(&x->formatted, &x->answer);
        x->first_chunk_made = true;
    }
    for (int i = 0; i < x->n_choices; i++) put_choice(x, &x->choices[i], &views[i]);
    if (x->state == HTTP_REQUEST_DONE && !x->last_chunk_made) put_end(x, views);
    return x->formatted.len > 0;
}
