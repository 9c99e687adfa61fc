#include "cli/chat/chat_gpus.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "cli/chat/chat_session.h"
#include "cli/chat/screen.h"
#include "cli/open.h"
#include "cli/options/trim.h"
#include "cli/tools/child.h"
#include "cli/turn/gpus.h"

enum state { NOT_BEGUN, RUNNING, RIGHT, ENDED };
struct chat_gpus {
    enum state state;
    struct child child;
    struct buf said; /* its messages */
};

static bool is_quiet(const struct repl *r) { return r->app->opts.v[OPT_QUIET].on; }

void chat_gpus_say(struct repl *r) {
    if (is_quiet(r) || open_is_builtin(r->app) || !r->app->has_unused_gpus) return;
    if (gpus_were_wrong())
        screen_print(r, "A GPU is there, and not used: hearth --check-gpus found its results wrong.");
    else
        screen_print(r, "A GPU is there of a kind that no hearth has run on. While the CPU makes the first answer, its "
                        "results are compared with the CPU's; --gpus none leaves it out.");
}

static void begin(struct repl *r, struct chat_gpus *g) {
    enum { NICENESS = 10 };
    const char *const argv[] = {"/proc/self/exe", "--check-gpus", "-m", r->app->model_dir, NULL};
    struct error e;
    g->state = ENDED;
    if (gpus_were_wrong()) return;
    if (child_start(&g->child, argv, 0, &e)) {
        screen_print(r, "the GPU cannot be checked: %s", e.text);
        return;
    }
    setpriority(PRIO_PROCESS, (id_t)g->child.pid, NICENESS); /* the answer comes first */
    child_close(&g->child.in);
    g->state = RUNNING;
}

static void drain(int *fd, struct buf *to) {
    char part[4096];
    for (ssize_t n; *fd >= 0 && (n = child_read(fd, part, sizeof part)) > 0;)
        if (to && to->len < sizeof part) buf_add(to, part, (size_t)n);
}

/* The last line of what the check has said. */
static void last_line(const struct buf *said, const char **line, size_t *n) {
    const size_t end = said->data ? trim_end(said->data, said->len, "\r\n ") : 0;
    const char *from = end ? memrchr(said->data, '\n', end) : NULL;
    *line = !end ? "no reason given" : from ? from + 1 : said->data;
    *n = !end ? strlen(*line) : end - (size_t)(*line - said->data);
}

static void judge(struct repl *r, struct chat_gpus *g) {
    const char *line;
    size_t n;
    drain(&g->child.out, NULL);
    drain(&g->child.err, &g->said);
    const int status = child_end(&g->child, 0);
    child_close(&g->child.out);
    child_close(&g->child.err);
    g->state = ENDED;
    if (WIFEXITED(status) && !WEXITSTATUS(status)) g->state = RIGHT;
    else if (gpus_were_wrong())
        screen_print(r,
                     "The GPU does not compute what the CPU does: it is not used with this version of hearth. hearth "
                     "--check-gpus shows how its results differ.");
    else {
        last_line(&g->said, &line, &n);
        screen_print(r, "The GPU could not be checked, and is not used: %.*s", (int)n, line);
    }
    buf_free(&g->said);
}

static bool is_answering(const struct repl *r) {
    return chat_session_answering(r) || r->on_screen || r->n_queue || chat_awaits_consent(r);
}

static void use(struct repl *r, struct chat_gpus *g) {
    struct error e;
    g->state = ENDED;
    chat_session_leave_engine(r);
    if (open_again(r->app, &e)) {
        screen_print(r, "%s", e.text);
        r->leaving = true;
    } else if (!r->app->gpus_failed && !is_quiet(r))
        screen_print(r, "The GPU computes what the CPU does: it is used from now on.");
}

void chat_gpus_poll(struct repl *r) {
    struct chat_gpus *g = r->gpus;
    if (!g) {
        if (!r->app->has_unused_gpus || open_is_builtin(r->app) || !is_answering(r)) return;
        if (!(g = r->gpus = mem_calloc(1, sizeof *g))) return;
        begin(r, g);
    }
    if (g->state == RUNNING) {
        drain(&g->child.out, NULL);
        drain(&g->child.err, &g->said);
        if (child_has_ended(&g->child)) judge(r, g);
    }
    if (g->state == RIGHT && !is_answering(r)) use(r, g);
}

void chat_gpus_end(struct repl *r) {
    if (!r->gpus) return;
    if (r->gpus->state == RUNNING) {
        child_end(&r->gpus->child, 0);
        child_close(&r->gpus->child.out);
        child_close(&r->gpus->child.err);
    }
    buf_free(&r->gpus->said);
    mem_free(r->gpus);
    r->gpus = NULL;
}
