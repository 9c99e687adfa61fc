/* Reads generation_config.json: stop ids and the vendor's sampling defaults. Sets the defaults of models without it. */
#include <math.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/generation_config.h"
#include "engine/session/engine_state.h"

static int add_eos(struct engine *eng, int64_t id, struct error *e) {
    if (id < 0 || id >= eng->info.vocab) return 0; /* some vendors list ids outside the vocabulary */
    for (int i = 0; i < eng->info.n_eos; i++)
        if (eng->eos[i] == id) return 0;
    int32_t *more = mem_realloc(eng->eos, ((size_t)eng->info.n_eos + 1) * sizeof *more);
    if (!more) return error_set(e, ERR_MEMORY, "no memory for %d stop ids", eng->info.n_eos + 1);
    eng->eos = more;
    eng->eos[eng->info.n_eos++] = (int32_t)id;
    eng->info.eos = eng->eos;
    return 0;
}

int engine_add_eos(struct engine *eng, int32_t id, struct error *e) { return add_eos(eng, id, e); }

/* Sets the defaults of a model whose generation_config.json is missing or says nothing of sampling: those of its GGUF
 * metadata, or hearth's. Greedy answers repeat themselves, and a second one would be the first. */
static void set_defaults(struct engine *eng) {
    const struct gguf_sampling *given = &eng->weights.sampling;
    struct engine_info *f = &eng->info;
    const int64_t top_k = given->is_given ? given->top_k : 40;
    f->is_own_sampling = !given->is_given;
    f->temperature = given->is_given ? given->temperature : 0.7;
    f->top_p = given->is_given ? given->top_p : 0.95;
    f->min_p = given->is_given ? given->min_p : 0.05;
    f->repeat_penalty = given->is_given ? given->repeat_penalty : NAN;
    f->top_k = top_k > 0 && top_k < f->vocab ? (int)top_k : 0;
    f->do_sample = true;
}

/* Returns a number, or NAN if it is absent or out of range. */
static double number_in(const struct json *root, const char *key, double least, double most) {
    const double v = json_num(json_get(root, key), NAN);
    return v >= least && v <= most ? v : NAN;
}

/* Reads the vendor's sampling. A file that only lists ids, as Kimi K2's, says nothing of it. A temperature without
 * do_sample counts, as in other servers; transformers would not sample. */
static void read_sampling(struct engine *eng, const struct json *root) {
    struct engine_info *f = &eng->info;
    const struct json *samples = json_get(root, "do_sample");
    const int64_t k = json_int(json_get(root, "top_k"), 0);
    const double temperature = number_in(root, "temperature", 0, 100), top_p = number_in(root, "top_p", 1e-6, 1),
                 min_p = number_in(root, "min_p", 0, 1), penalty = number_in(root, "repetition_penalty", 1e-3, 100);
    const bool is_said = samples && samples->type == JSON_BOOL;
    const bool is_given = is_said || !isnan(temperature) || !isnan(top_p) || !isnan(min_p) || !isnan(penalty) || k > 0;
    if (!is_given) {
        set_defaults(eng);
        return;
    }
    f->temperature = temperature, f->top_p = top_p, f->min_p = min_p, f->repeat_penalty = penalty;
    f->top_k = k > 0 && k < f->vocab ? (int)k : 0;
    f->do_sample = !is_said || samples->boolean;
}

int generation_config_read(struct engine *eng, struct error *e) {
    const struct config *c = &eng->weights.config;
    struct engine_info *f = &eng->info;
    int rc = 0;
    for (int i = 0; i < c->n_eos && !rc; i++) rc = add_eos(eng, c->eos[i], e);
    f->temperature = f->top_p = f->min_p = f->repeat_penalty = NAN;
    char path[4096], *text = NULL;
    size_t n;
    if (!rc) rc = file_join(path, sizeof path, eng->dir, "generation_config.json", e);
    if (rc) return rc;
    if (!file_exists(path)) {
        set_defaults(eng);
        return 0;
    }
    if ((rc = file_read(path, 1u << 20, &text, &n, e))) return rc;
    struct arena a = {0};
    struct json root;
    if (!n) set_defaults(eng);
    else rc = json_parse(&a, text, n, JSON_PYTHON, path, &root, e);
    if (!rc && n) {
        const struct json *eos = json_get(&root, "eos_token_id");
        for (uint32_t i = 0; !rc && eos && i < (eos->type == JSON_ARRAY ? eos->n : 1); i++)
            rc = add_eos(eng, json_int(eos->type == JSON_ARRAY ? json_at(eos, i) : eos, -1), e);
        read_sampling(eng, &root);
    }
    arena_free(&a);
    mem_free(text);
    return rc;
}
