#include "cli/tools/tool_process.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "cli/terminal/out.h"
#include "cli/tools/child.h"

enum { STDERR_BYTES = 2048, CHECK_MS = 50, EXIT_MS = 5 };
enum run_end { RUN_ENDED, RUN_TIMED_OUT, RUN_CANCELLED };

struct run {
    struct child child;
    const struct tool_command *command;
    const char *input;
    size_t n_input;
    struct buf out, err; /* err: the last bytes */
    bool is_cut;
};

/* Closes the pipe when the tool has written more than its limit: its next write gets SIGPIPE, as in a pipe to head. */
static void receive_output(struct run *r) {
    char chunk[16384];
    const ssize_t n = r->child.out < 0 ? -1 : child_read(&r->child.out, chunk, sizeof chunk);
    const size_t room = r->command->max_output - r->out.len;
    if (n <= 0) return;
    r->is_cut = (size_t)n > room;
    buf_add(&r->out, chunk, r->is_cut ? room : (size_t)n);
    if (r->is_cut) child_close(&r->child.out);
}

static void receive_errors(struct run *r) {
    char chunk[4096];
    const ssize_t n = r->child.err < 0 ? -1 : child_read(&r->child.err, chunk, sizeof chunk);
    if (n <= 0) return;
    buf_add(&r->err, chunk, (size_t)n);
    if (r->err.len <= STDERR_BYTES) return;
    memmove(r->err.data, r->err.data + r->err.len - STDERR_BYTES, STDERR_BYTES);
    r->err.len = STDERR_BYTES;
}

static void send_input(struct run *r) {
    const ssize_t n = child_write(&r->child.in, r->input, r->n_input);
    if (n > 0) r->input += n, r->n_input -= (size_t)n;
    if (!r->n_input) child_close(&r->child.in);
}

/* Reads what an ended child has left in its pipes. */
static void drain(struct run *r) {
    enum { MOST_READS = 32 }; /* of 4 KiB each: more than a pipe holds */
    for (size_t before = SIZE_MAX; r->child.out >= 0 && before != r->out.len;) before = r->out.len, receive_output(r);
    for (int i = 0; i < MOST_READS; i++) receive_errors(r);
}

static enum run_end wait_for_end(struct run *r, int cancel_fd) {
    const double until = clock_now() + r->command->timeout_s;
    if (!r->n_input) child_close(&r->child.in);
    for (;;) {
        struct pollfd fds[4] = {{.fd = r->child.in, .events = POLLOUT},
                                {.fd = r->child.out, .events = POLLIN},
                                {.fd = r->child.err, .events = POLLIN},
                                {.fd = cancel_fd, .events = POLLIN}};
        const int ready = poll(fds, 4, r->child.out < 0 && r->child.err < 0 ? EXIT_MS : CHECK_MS);
        if (ready > 0 && fds[3].revents) return RUN_CANCELLED;
        if (ready > 0 && fds[0].revents) send_input(r);
        if (ready > 0 && fds[1].revents) receive_output(r);
        if (ready > 0 && fds[2].revents) receive_errors(r);
        if ((ready <= 0 || (r->child.out < 0 && r->child.err < 0)) && child_has_ended(&r->child)) return RUN_ENDED;
        if (clock_now() >= until) return RUN_TIMED_OUT;
    }
}

static void describe_end(const struct run *r, enum run_end end, int status, struct tool_result *out) {
    const bool of_pipe = WIFSIGNALED(status) ? WTERMSIG(status) == SIGPIPE /* or a shell's, whose program it ended */
                                             : WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGPIPE,
               cut_short = r->is_cut && of_pipe;
    if (r->is_cut) tool_result_note(out, "cut at %zu bytes", r->command->max_output);
    if (end == RUN_CANCELLED) {
        out->status = TOOL_STOPPED;
        tool_result_note(out, "stopped by the user");
        return;
    }
    if (end == RUN_TIMED_OUT) tool_result_note(out, "stopped after %g s, its limit of time", r->command->timeout_s);
    else if (WIFSIGNALED(status) && !cut_short)
        tool_result_note(out, "ended by signal %d: %s", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WIFEXITED(status) && WEXITSTATUS(status) && !cut_short)
        tool_result_note(out, "exit status %d", WEXITSTATUS(status));
    else return;
    out->status = TOOL_FAILED;
    if (!r->err.len) return;
    buf_str(&out->text, "\n[stderr]\n");
    out_utf8(&out->text, r->err.data, r->err.len);
}

void tool_process_run(const struct tool_command *c, const char *input, size_t n, int cancel_fd,
                      struct tool_result *out) {
    const double start = clock_now();
    struct run r = {.command = c, .input = input, .n_input = n};
    struct error e;
    if (child_start(&r.child, c->argv, c->dir, &e)) {
        out->status = TOOL_FAILED;
        out->text.failed = e.code == ERR_MEMORY; /* ends the answer */
        tool_result_note(out, "%s", e.text);
        return;
    }
    const enum run_end end = wait_for_end(&r, cancel_fd);
    const int status = child_end(&r.child, 0);
    drain(&r);
    child_close(&r.child.out);
    child_close(&r.child.err);
    out_utf8(&out->text, r.out.data ? r.out.data : "", r.out.len);
    describe_end(&r, end, status, out);
    out->text.failed |= r.out.failed;
    out->seconds = clock_now() - start;
    buf_free(&r.out);
    buf_free(&r.err);
}

bool tool_process_is_cancelled(int cancel_fd, int timeout_ms) {
    struct pollfd fd = {.fd = cancel_fd, .events = POLLIN};
    return poll(&fd, 1, timeout_ms) > 0 && fd.revents;
}
