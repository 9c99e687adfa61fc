/* engine_plan: the machine and the model that a plan is for, by their names. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "engine/model/arch.h"
#include "engine/model/known.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/datasheet.h"
#include "engine/plan/plan_write.h"
#include "engine/session/engine_check.h"
#include "engine/session/engine_state.h"
#include "engine/weights/shape_only.h"
#include "engine/weights/weights_open.h"

/* Calibrates this machine, opened as the engine would. */
static int calibrate_here(struct cost_machine *m, const struct engine_params *p, struct error *e) {
    enum cpu_level level = p->cpu_level ? (enum cpu_level)(p->cpu_level - 1) : cpu_level_best();
    struct pool *pool = NULL;
    struct exec *cpu = NULL;
    struct gpu_set *set = NULL;
    struct numa nodes;
    int rc = engine_check_level(p, e);
    if (!rc) rc = engine_read_topology(&nodes, p->topology, e);
    if (!rc) rc = pool_open_nodes(&pool, p->threads, true, &nodes, e);
    if (!rc && !(cpu = cpu_exec_open(pool, level, e))) rc = ERR_MEMORY;
    if (!rc) rc = gpu_set_open(&set, p->gpus, e);
    struct calibrate_options o = {
        .cpu = cpu, .pool = pool, .nodes = &nodes, .dir = p->calibration_dir, .gpus = p->gpus};
    if (!rc)
        o.threads = pool_threads(pool), o.gpu = set ? set->gpu : NULL, o.n_gpus = set ? set->n : 0,
        rc = calibrate(m, &o, e);
    gpu_set_close(&set);
    cpu_exec_close(&cpu);
    pool_close(&pool);
    return rc;
}

static int json_list(struct buf *b, struct error *e) {
    struct cost_machine m;
    char why[420];
    buf_str(b, "{\"machines\":[{\"name\":\"here\",\"what\":\"this machine, measured\"}");
    for (int i = 0; cost_preset_name(i); i++) {
        cost_preset(&m, cost_preset_name(i));
        buf_fmt(b, ",{\"name\":\"%s\",\"what\":\"%s\"}", cost_preset_name(i), m.name);
    }
    for (int i = 0; datasheet_preset_name(i); i++)
        if (datasheet_preset(&m, datasheet_preset_name(i), why, sizeof why) == DATASHEET_FOUND)
            buf_fmt(b, ",{\"name\":\"%s\",\"what\":\"%s\"}", datasheet_preset_name(i), m.name);
    buf_str(b, "],\"cards\":[");
    for (int i = 0; datasheet_card_name(i); i++) buf_fmt(b, "%s\"%s\"", i ? "," : "", datasheet_card_name(i));
    buf_str(b, "],\"models\":[");
    for (int i = 0; known_model_at(i); i++)
        buf_fmt(b, "%s{\"name\":\"%s\",\"title\":\"%s\",\"weights\":\"%s\",\"parameters\":%g,\"active\":%g}",
                i ? "," : "", known_model_at(i)->name, known_model_at(i)->title, dtype_name(known_model_at(i)->experts),
                known_model_at(i)->total * 1e9, known_model_at(i)->active * 1e9);
    buf_str(b, "],\"formats\":[");
    for (int i = 0; known_format_at(i); i++) buf_fmt(b, "%s\"%s\"", i ? "," : "", known_format_at(i)->name);
    buf_str(b, "]}");
    return b->failed ? error_set(e, ERR_MEMORY, "no memory for the list") : 0;
}

static int on_progress(void *ctx, double share) {
    const struct engine_params *p = ctx;
    return p->progress(p->progress_ctx, "plan", share);
}

/* A pool counts as the experts that it has in the mean: those that are used most. */
static struct plan_options to_plan_options(const struct engine_params *p) {
    struct expert_cache experts;
    engine_parse_expert_cache(p->expert_cache, &experts);
    experts.is_pinned = experts.request != BUDGET_LAYERS && experts.request != BUDGET_OFF;
    return (struct plan_options){.experts = experts,
                                 .kv = p->kv ? (enum dtype)p->kv : DT_BF16,
                                 .max_tpot_s = p->max_tpot_s,
                                 .progress = p->progress ? on_progress : NULL,
                                 .ctx = (void *)p};
}

/* A model by name, in the format after a colon or as published. */
static int find_known(const char *arch, const struct known_model **k, struct known_format *f, struct error *e) {
    char name[64], all[600] = "";
    const size_t n = strcspn(arch, ":");
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), arch);
    if (!(*k = known_model_find(name))) {
        for (int i = 0; known_model_at(i); i++)
            snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", known_model_at(i)->name);
        return error_set(e, ERR_USAGE, "--arch %s: unknown; known: %s. Use -m DIR to plan for a checkpoint", arch, all);
    }
    *f = (struct known_format){.dense = (*k)->dense, .gate_up = (*k)->experts, .down = (*k)->experts};
    if (!arch[n]) return 0;
    const struct known_format *const asked = known_format_find(arch + n + 1);
    if (asked) return *f = *asked, 0;
    for (int i = 0; known_format_at(i); i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", known_format_at(i)->name);
    return error_set(e, ERR_USAGE, "--arch %s: unknown format; known: %s", arch, all);
}

static int plan_known(const struct cost_machine *m, const struct known_model *k, const struct known_format *f,
                      const struct engine_params *p, struct buf *json, struct error *e) {
    struct shape_only s = {0};
    struct config *c = mem_alloc(sizeof *c);
    const struct plan_options o = to_plan_options(p);
    char title[96];
    snprintf(title, sizeof title, "%s%s%s", k->title, f->name ? " in " : "", f->name ? f->name : "");
    int rc = c ? known_model_config(k, c, e) : error_set(e, ERR_MEMORY, "no memory for a config");
    if (!rc) rc = shape_only_open_as(&s, c, f, e);
    if (!rc) rc = plan_write(m, &s.w, title, &o, json, e);
    shape_only_close(&s);
    mem_free(c);
    return rc;
}

int engine_plan(const struct engine_params *p, const char *machine, const char *arch, struct buf *json,
                struct error *e) {
    struct cost_machine m;
    const struct known_model *k;
    struct known_format f;
    if (!strcmp(machine, "list")) return json_list(json, e);
    if (to_plan_options(p).experts.is_sent)
        return error_set(
            e, ERR_USAGE,
            "--plan does not simulate --expert-cache %s: how often a sent expert is chosen again depends on "
            "the model; hearth MODEL --tune measures it",
            p->expert_cache);
    if (find_known(arch ? arch : "deepseek-v3", &k, &f, e)) return e->code;
    int rc = strcmp(machine, "here") ? calibrate_read(&m, machine, e) : calibrate_here(&m, p, e);
    if (rc || !p->dir) return rc ? rc : plan_known(&m, k, &f, p, json, e);
    struct weights w;
    if ((rc = weights_open(&w, p->dir, p->force, e))) return rc;
    struct plan_options o = to_plan_options(p);
    if (w.config.n_experts && p->usage_dir)
        rc = usage_profile_open(&o.usage, &w.config, p->usage_dir, w.files.fingerprint, e);
    usage_profile_pin(o.usage, 0);
    if (!rc) rc = plan_write(&m, &w, w.config.arch->title, &o, json, e);
    usage_profile_close(&o.usage);
    weights_close(&w);
    return rc;
}
