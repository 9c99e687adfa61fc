#include "engine/session/engine_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "engine/experts/score.h"
#include "engine/experts/tuned.h"
#include "engine/placement/split.h"
#include "gpu/spec.h"

int engine_check_level(const struct engine_params *p, struct error *e) {
    enum cpu_level level = p->cpu_level ? (enum cpu_level)(p->cpu_level - 1) : cpu_level_best();
    if (cpu_level_has(level)) return 0;
    return error_set(e, ERR_USAGE, "cpu level %s: this CPU supports up to %s (--cpu)", cpu_level_name(level),
                     cpu_level_name(cpu_level_best()));
}

int engine_parse_expert_cache(const char *text, struct expert_cache *out) {
    static const struct {
        const char *name;
        struct expert_cache means;
        bool takes_size; /* after a colon */
    } named[] = {{"layers", {BUDGET_LAYERS}},
                 {"auto", {BUDGET_AUTO, .is_pinned = true}},
                 {"pinned", {BUDGET_EACH, .is_pinned = true}, .takes_size = true},
                 {"moving", {BUDGET_EACH}, .takes_size = true},
                 {"sent", {BUDGET_EACH, .is_sent = true}, .takes_size = true}};
    struct expert_cache kind = {0};
    char *end;
    *out = (struct expert_cache){BUDGET_OFF};
    if (!text || !strcmp(text, "off")) return 0;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const size_t n = strlen(named[i].name);
        if (strncmp(text, named[i].name, n) != 0) continue;
        if (!text[n]) return *out = named[i].means, 0;
        if (!named[i].takes_size || text[n] != ':') return ERR_USAGE;
        text += n + 1, kind = named[i].means;
        break;
    }
    double x = strtod(text, &end);
    const char *units = "KMGT", *unit = *end ? strchr(units, *end) : NULL;
    if (!(text[0] >= '0' && text[0] <= '9') || !(x < 1e9) || (*end && (!unit || end[1])) ||
        (!*end && x != (double)(size_t)x))
        return ERR_USAGE;
    out->request = unit ? BUDGET_BYTES : x > 0 ? BUDGET_EXPERTS : BUDGET_OFF;
    out->is_pinned = kind.is_pinned && out->request != BUDGET_OFF;
    out->is_sent = kind.is_sent && out->request != BUDGET_OFF;
    for (const char *u = units; unit && u <= unit; u++) x *= 1024;
    out->n = (size_t)x;
    return 0;
}

/* Replaces *x by what --tune has found to be faster. */
static void follow_tuned(const struct engine_params *p, uint64_t fingerprint, struct expert_cache *x,
                         char why[EXPERT_CACHE_WHY]) {
    struct tuned t;
    struct expert_cache tuned;
    if (p->deterministic || !p->tuned_dir || !tuned_read(p->tuned_dir, fingerprint, p->machine, &t)) return;
    if (t.is_of_other)
        snprintf(why, EXPERT_CACHE_WHY,
                 "--tune chose %s on another machine or with other devices, which does not count here: hearth MODEL "
                 "--tune measures again",
                 t.choice);
    else if (!engine_parse_expert_cache(t.choice, &tuned)) {
        *x = tuned;
        snprintf(why, EXPERT_CACHE_WHY, "--expert-cache %s by --tune: %s", t.choice, t.why);
    }
}

struct expert_cache engine_expert_cache(const struct engine_params *p, uint64_t fingerprint, const char **usage_dir,
                                        char why[EXPERT_CACHE_WHY]) {
    struct expert_cache x;
    engine_parse_expert_cache(p->expert_cache, &x);
    *why = 0;
    if (x.request == BUDGET_AUTO) follow_tuned(p, fingerprint, &x, why);
    if (p->deterministic && x.request == BUDGET_AUTO) x.is_pinned = false;
    *usage_dir = p->deterministic && !x.is_pinned ? NULL : p->usage_dir;
    return x;
}

int engine_check_modes(const struct engine_params *p, struct error *e) {
    bool none = !p->gpus || !*p->gpus || !strcmp(p->gpus, "none");
    struct gpu_spec spec = {0};
    int rc = engine_check_level(p, e);
    if (!rc && !none) rc = gpu_spec_parse(&spec, p->gpus, e);
    if (rc) return rc;
    if (spec.is_virtual)
        return error_set(e, ERR_USAGE, "--gpus %s: virtual time is a simulation and computes nothing", p->gpus);
    if (p->prefill == PREFILL_DSLP && spec.n == 1)
        return error_set(e, ERR_USAGE, "--prefill dslp needs two devices or more; --gpus names one");
    if (none && exec_modes[p->prefill].min_devices)
        return error_set(e, ERR_USAGE, "--prefill %s needs a device: name one with --gpus", exec_mode_name(p->prefill));
    if (none && exec_modes[p->decode].min_devices)
        return error_set(e, ERR_USAGE, "--decode %s needs a device: name one with --gpus", exec_mode_name(p->decode));
    if (p->decode == DECODE_PAGED && p->draft > DRAFT_AUTO)
        return error_set(e, ERR_USAGE,
                         "--decode paged uses no drafts, since a row of another prompt yields more than a drafted "
                         "token: leave out --draft");
    struct expert_cache cache;
    if (engine_parse_expert_cache(p->expert_cache, &cache))
        return error_set(
            e, ERR_USAGE,
            "--expert-cache %s: use layers, auto, off, experts per layer (8) or memory per device (4G), or "
            "pinned, moving or sent, with or without a size (pinned:8, sent:4G)",
            p->expert_cache);
    if (p->evict && !score_find(p->evict)) return error_set(e, ERR_USAGE, "--evict %s: unknown policy", p->evict);
    return p->split && !split_find(p->split) ? error_set(e, ERR_USAGE, "--split %s: unknown policy", p->split) : 0;
}

int engine_read_topology(struct numa *nodes, const char *topology, struct error *err) {
    if (!topology) {
        numa_read(nodes);
        return 0;
    }
    char *text;
    size_t n;
    int rc = file_read(topology, 1u << 20, &text, &n, err);
    if (!rc) rc = numa_parse(nodes, text, err);
    mem_free(text);
    return rc;
}

int engine_store_tuned(const struct engine_params *p, uint64_t fingerprint, const char *choice, const char *why,
                       struct error *e) {
    struct expert_cache x;
    if (!p->tuned_dir || engine_parse_expert_cache(choice, &x))
        return error_set(e, ERR_USAGE, "--tune: %s cannot be stored", choice);
    return tuned_write(p->tuned_dir, fingerprint, p->machine, choice, why, e);
}
