#include "base/mem.h"
#include "cli/report.h"
#include "cli/server/server.h"
#include "cli/tools/gpu_check.h"
#include "cli/turn/gpus.h"

/* Begins with a model that is open without the GPUs. */
static void begin(struct server *s) {
    const struct app *a = NULL;
    struct error e;
    for (size_t i = 0; i < s->n_models && !a; i++)
        if (s->models[i]->is_open && (s->models[i]->app->has_unused_gpus || *s->models[i]->app->gpu_trouble))
            a = s->models[i]->app;
    if (!a || s->stopping || !(s->gpus = mem_calloc(1, sizeof *s->gpus))) return;
    if (*a->gpu_trouble) report_note("a GPU is there, and not used: %s", a->gpu_trouble);
    if (!a->has_unused_gpus) return;
    if (gpus_were_wrong()) report_note("a GPU is there, and not used: hearth --check-gpus found its results wrong");
    else if (gpu_check_start(s->gpus, a->model_dir, &e)) report_note("the GPU cannot be checked: %s", e.text);
    else
        report_note("a GPU is there of a kind that no hearth has run on: while the CPU answers, its results are "
                    "compared with the CPU's; --gpus none leaves it out");
}

void serve_gpus_poll(struct server *s) {
    struct error e;
    if (!s->gpus) begin(s);
    const enum gpu_check_result result = s->gpus ? gpu_check_poll(s->gpus, &e) : GPU_CHECK_NONE;
    if (result == GPU_CHECK_WRONG)
        report_note("the GPU does not compute what the CPU does: it is not used with this version of hearth; hearth "
                    "--check-gpus shows how its results differ");
    if (result == GPU_CHECK_FAILED) report_note("the GPU could not be checked, and is not used: %s", e.text);
    if (result != GPU_CHECK_RIGHT) return;
    report_note("the GPU computes what the CPU does: models are opened with it from now on");
    for (size_t i = 0; i < s->n_models; i++) { /* one that is being opened may have looked before */
        struct serve_model *m = s->models[i];
        m->is_outdated = (m->is_open && m->app->has_unused_gpus) || m->job == SERVE_JOB_ENGINE;
    }
}

void serve_gpus_end(struct server *s) {
    if (s->gpus) gpu_check_end(s->gpus);
    mem_free(s->gpus);
}
