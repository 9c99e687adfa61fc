#include "cli/tools/gpu_check.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "cli/options/trim.h"
#include "cli/turn/gpus.h"

int gpu_check_start(struct gpu_check *g, const char *model_dir, struct error *e) {
    enum { NICENESS = 10 };
    const char *const argv[] = {"/proc/self/exe", "--check-gpus", "-m", model_dir, NULL};
    TRY(child_start(&g->child, argv, 0, e));
    setpriority(PRIO_PROCESS, (id_t)g->child.pid, NICENESS); /* the answers come first */
    child_close(&g->child.in);
    g->runs = true;
    return 0;
}

static void drain(int *fd, struct buf *to) {
    char part[4096];
    for (ssize_t n; *fd >= 0 && (n = child_read(fd, part, sizeof part)) > 0;)
        if (to && to->len < sizeof part) buf_add(to, part, (size_t)n);
}

/* The last line of what the check has said. */
static void say_why(const struct buf *said, struct error *e) {
    const size_t end = said->data ? trim_end(said->data, said->len, "\r\n ") : 0;
    const char *from = end ? memrchr(said->data, '\n', end) : NULL, *line = from ? from + 1 : said->data;
    if (!end) error_set(e, ERR_RUNTIME, "no reason given");
    else error_set(e, ERR_RUNTIME, "%.*s", (int)(said->data + end - line), line);
}

static int end(struct gpu_check *g) {
    const int status = child_end(&g->child, 0);
    child_close(&g->child.out);
    child_close(&g->child.err);
    g->runs = false;
    return status;
}

enum gpu_check_result gpu_check_poll(struct gpu_check *g, struct error *e) {
    if (!g->runs) return GPU_CHECK_NONE;
    const bool has_ended = child_has_ended(&g->child); /* before the last of its text is read */
    drain(&g->child.out, NULL);
    drain(&g->child.err, &g->said);
    if (!has_ended) return GPU_CHECK_RUNS;
    const int status = end(g);
    const enum gpu_check_result result = WIFEXITED(status) && !WEXITSTATUS(status) ? GPU_CHECK_RIGHT
                                         : gpus_were_wrong()                       ? GPU_CHECK_WRONG
                                                                                   : GPU_CHECK_FAILED;
    if (result == GPU_CHECK_FAILED) say_why(&g->said, e);
    buf_free(&g->said);
    return result;
}

void gpu_check_end(struct gpu_check *g) {
    if (g->runs) end(g);
    buf_free(&g->said);
}
