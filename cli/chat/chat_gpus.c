#include "cli/chat/chat_gpus.h"

#include "cli/chat/chat_session.h"
#include "cli/chat/screen.h"
#include "cli/open.h"
#include "cli/tools/gpu_check.h"
#include "cli/turn/gpus.h"

enum state { NOT_BEGUN, RUNNING, RIGHT, ENDED };
struct chat_gpus {
    enum state state;
    struct gpu_check check;
};

static bool is_quiet(const struct repl *r) { return r->app->opts.v[OPT_QUIET].on; }

void chat_gpus_say(struct repl *r) {
    if (is_quiet(r) || open_is_builtin(r->app)) return;
    if (*r->app->gpu_trouble) screen_print(r, "A GPU is there, and not used: %s.", r->app->gpu_trouble);
    if (!r->app->has_unused_gpus) return;
    if (gpus_were_wrong())
        screen_print(r, "A GPU is there, and not used: hearth --check-gpus found its results wrong.");
    else
        screen_print(r, "A GPU is there of a kind that no hearth has run on. While the CPU makes the first answer, its "
                        "results are compared with the CPU's; --gpus none leaves it out.");
}

static void begin(struct repl *r, struct chat_gpus *g) {
    struct error e;
    g->state = ENDED;
    if (gpus_were_wrong()) return;
    if (gpu_check_start(&g->check, r->app->model_dir, &e)) screen_print(r, "the GPU cannot be checked: %s", e.text);
    else g->state = RUNNING;
}

static void judge(struct repl *r, struct chat_gpus *g) {
    struct error e;
    const enum gpu_check_result result = gpu_check_poll(&g->check, &e);
    if (result == GPU_CHECK_RUNS) return;
    g->state = ENDED;
    if (result == GPU_CHECK_RIGHT) g->state = RIGHT;
    else if (result == GPU_CHECK_WRONG)
        screen_print(r,
                     "The GPU does not compute what the CPU does: it is not used with this version of hearth. hearth "
                     "--check-gpus shows how its results differ.");
    else screen_print(r, "The GPU could not be checked, and is not used: %s", e.text);
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
    if (is_answering(r)) return; /* a verdict within an answer would part its text */
    if (g->state == RUNNING) judge(r, g);
    if (g->state == RIGHT) use(r, g);
}

void chat_gpus_end(struct repl *r) {
    if (!r->gpus) return;
    gpu_check_end(&r->gpus->check);
    mem_free(r->gpus);
    r->gpus = NULL;
}
