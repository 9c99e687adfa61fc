#include "cli/tools/tool_job.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cli/terminal/sig.h"

struct tool_job {
    pthread_t thread;
    const struct tool *tool;
    struct buf arguments;
    uint64_t seen;
    struct tool_result result;
    _Atomic bool has_ended;
    int cancel_fd;
};

static void *job_thread(void *job) {
    struct tool_job *j = job;
    tool_set_run(j->tool, &j->arguments, j->seen, j->cancel_fd, &j->result);
    atomic_store(&j->has_ended, true);
    sig_wake();
    return NULL;
}

static void job_free(struct tool_job *j) {
    if (j->cancel_fd >= 0) close(j->cancel_fd);
    buf_free(&j->arguments);
    tool_result_free(&j->result);
    mem_free(j);
}

int tool_job_start(struct tool_job **out, const struct tool *t, const struct buf *arguments, uint64_t seen,
                   struct error *e) {
    struct tool_job *j = *out = mem_calloc(1, sizeof *j);
    if (!j) return error_set(e, ERR_MEMORY, "no memory");
    j->tool = t;
    j->seen = seen;
    j->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int failed = errno;
    int rc = buf_add(&j->arguments, arguments->data, arguments->len) ? error_set(e, ERR_MEMORY, "no memory") : 0;
    if (!rc && j->cancel_fd < 0)
        rc = error_set(e, ERR_RUNTIME, "no descriptor for a tool call: %s", error_reason(failed));
    if (!rc && !sig_start_thread(&j->thread, job_thread, j))
        rc = error_set(e, ERR_RUNTIME, "cannot start a thread for a tool call: %s", error_reason(errno));
    if (!rc) return 0;
    job_free(j);
    *out = NULL;
    return rc;
}

bool tool_job_has_ended(const struct tool_job *j) { return atomic_load(&j->has_ended); }

void tool_job_cancel(void *job) {
    const uint64_t one = 1;
    const int saved = errno;
    if (write(((struct tool_job *)job)->cancel_fd, &one, sizeof one) < 0) errno = saved; /* full: cancelled already */
    errno = saved;
}

void tool_job_close(struct tool_job **at, struct tool_result *r) {
    struct tool_job *j = *at;
    *at = NULL;
    if (!j) return;
    pthread_join(j->thread, NULL);
    if (r) *r = j->result, j->result = (struct tool_result){0};
    job_free(j);
}
