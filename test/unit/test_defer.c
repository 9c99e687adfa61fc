/* Deferred experts: against layers written out with single experts, and the same text in every mode. */
#include "engine/layer/work_open.h"
#include "test/unit/session.h"

#include <math.h>
#include <stdlib.h>

#include "cpu/cpu.h"
#include "engine/ember/ember.h"
#include "engine/exec/decode/decode_state.h"
#include "engine/session/engine_state.h"

enum { TOKENS = 40, ANSWER = 48, SESSIONS = 3 };

static struct engine *open_with(struct engine_params p) {
    struct engine *e;
    struct error err = {0};
    p.dir = "ember:", p.threads = 2, p.cpu_level = CPU_SCALAR + 1, p.kv = DT_F32, p.context = 512;
    if (engine_open(&e, &p, &err)) fail_msg("%s", err.text);
    return e;
}

/* One token by the definition: the experts of ranks [0, topk - n) now, the others once the next layer has added its own. */
static void layers_of_token(struct engine *e, struct kv *kv, struct work *w, int token, int pos, int n, float *logits) {
    const struct weights *m = &e->weights;
    const struct config *c = &m->config;
    struct exec *x = e->machine.cpu;
    struct span span = {.cache = kv->layer, .n = 1, .pos = pos};
    struct error err = {0};
    float *late = calloc((size_t)c->hidden, sizeof *late), *sum = calloc((size_t)c->hidden, sizeof *sum);
    int32_t top, ids[64];
    assert_int_equal(kv_commit(kv, pos + 1, &err), 0);
    w->tokens[0] = token, w->pos[0] = pos, *w->first_bad = -1;
    memcpy(w->inv_freq, m->inv_freq, (size_t)c->rope.dim / 2 * sizeof(float));
    assert_int_equal(block_embed(x, m, w->x, w->tokens, 1) | block_rope(x, m, w, 1, 0), 0);
    for (int l = 0; l < c->n_layers; l++) {
        const struct layer *y = &m->layers[l];
        const bool waits = c->layer[l].moe && l + 1 < c->n_layers && c->layer[l + 1].moe;
        assert_int_equal(block_attention(x, c, y, l, w, &span, 1, 1) | block_route(x, c, y, l, w, 1), 0);
        memset(sum, 0, (size_t)c->hidden * sizeof *sum);
        memcpy(ids, w->ids, (size_t)c->topk * sizeof *ids);
        for (int k = 0; k + 1 < c->topk && c->layer[l].moe; k++) { /* ranked by the logits and the bias of the selection */
            const int a = ids[k], b = ids[k + 1];
            const float *o = w->router, *bias = y->router_bias;
            assert_true(1 / (1 + expf(-o[a])) + (bias ? bias[a] : 0) >= 1 / (1 + expf(-o[b])) + (bias ? bias[b] : 0));
        }
        for (int k = 0; k < c->topk && c->layer[l].moe; k++) { /* one expert at a time */
            for (int i = 0; i < c->topk; i++) w->ids[i] = i == k ? ids[i] : -1;
            assert_int_equal(block_experts(x, c, y, l, w, PART_ROUTED, waits && k >= c->topk - n ? sum : w->x, 1), 0);
        }
        assert_int_equal(block_experts(x, c, y, l, w, PART_SHARED, w->x, 1), 0);
        for (int i = 0; i < c->hidden; i++) w->x[i] += late[i], late[i] = sum[i];
    }
    for (int i = 0; i < c->hidden; i++) assert_true(late[i] == 0); /* the last layer defers nothing */
    assert_int_equal(block_merge_streams(x, m, w, 1) | block_head(x, m, w, 0, 1, logits, &top), 0);
    free(late), free(sum);
}

static void as_defined(void **st) {
    double changed[3] = {0};
    for (int n = 0; n < 3; n++)
        for (int way = 0; way < (n ? 4 : 1); way++) {
            struct engine *e = open_with((struct engine_params){.gpus = way ? "emu:1,cpu=scalar" : NULL,
                                                                .expert_cache = way == 1   ? "layers"
                                                                                : way == 2 ? "off"
                                                                                           : "2",
                                                                .defer = n});
            const struct config *c = &e->weights.config;
            struct session *s[2] = {new_session(e), new_session(e)};
            struct error err = {0};
            struct work w;
            _Atomic int never = 0;
            float *want = malloc((size_t)c->vocab * sizeof *want);
            assert_int_equal(work_open(&w, c, 1, NULL, NULL, NULL, &err), 0);
            int32_t token = 5;
            for (int pos = 0; pos < TOKENS; pos++) {
                struct decode_span span = {.kv = &s[0]->kv, .tokens = &token, .pos = pos, .n = 1};
                layers_of_token(e, &s[1]->kv, &w, token, pos, n, want);
                if (decode_run(e->machine.decode, way ? DECODE_HYBRID : DECODE_CPU, &span, 1, &never, &err)) fail_msg("%s", err.text);
                double off = 0, size = 0;
                for (int i = 0; i < c->vocab; i++) off = fmax(off, fabs((double)span.logits[i] - (double)want[i])), size = fmax(size, fabs((double)want[i]));
                if (!(off < 2e-5 * size)) fail_msg("defer %d, way %d, position %d: off by %g of %g", n, way, pos, off, size);
                changed[n] = (double)want[0];
                token = 5 + (pos * 37 + 11) % 400;
            }
            free(want);
            work_close(&w);
            for (int i = 0; i < 2; i++) session_close(&s[i]);
            engine_close(&e);
        }
    assert_true(changed[0] != changed[1] && changed[1] != changed[2]);
}

struct text {
    int32_t token[SESSIONS][ANSWER];
};
/* Several sessions at once, with their own seeds. */
static struct text text_of(struct engine_params p, const char *mode) {
    struct text t = {0};
    struct engine *e = open_with(p);
    struct session *s[SESSIONS];
    struct error err = {0};
    int n[SESSIONS] = {0}, ran = 0;
    static int32_t prompt[SESSIONS][12];
    for (int i = 0; i < SESSIONS; i++) {
        s[i] = new_session(e);
        for (int k = 0; k < 12; k++) prompt[i][k] = 60 + (i * 71 + k * 29) % 400;
    }
    for (int i = 0; i < SESSIONS; i++)
        if (session_submit(s[i],
                           &(struct request){.tokens = prompt[i],
                                             .n = 12,
                                             .max_tokens = ANSWER,
                                             .client = (uint64_t)i,
                                             .flags = REQ_IGNORE_EOS,
                                             .sampling = {.temperature = 0.8f, .top_p = 1, .seed = (uint64_t)(7 + i)}},
                           &err))
            fail_msg("%s", err.text);
    for (int left = SESSIONS; left;) {
        struct event ev;
        int i = 0;
        if (!engine_poll(e, &ev, 120000)) fail_msg("no event for two minutes");
        while (s[i] != ev.session) i++;
        if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
        if (ev.kind == EVENT_TOKEN) t.token[i][n[i]++] = ev.token;
        if (ev.kind == EVENT_DONE) left--, ran += !strcmp(ev.stats.decode_mode, mode);
    }
    assert_true(ran > 0); /* the last of them may decode alone */
    for (int i = 0; i < SESSIONS; i++) session_close(&s[i]);
    engine_close(&e);
    return t;
}

/* Experts on devices, on the CPU, and both; layers on one device, on two and on the CPU; one micro-batch and two; with drafts and without. */
static void same_text_everywhere(void **st) {
    static const struct {
        const char *gpus, *cache, *mode;
        enum exec_mode decode;
        enum draft_kind draft;
    } ways[] = {{NULL, NULL, "cpu", DECODE_CPU, DRAFT_LOOKUP},
                {"emu:1,cpu=scalar", "layers", "hybrid", DECODE_HYBRID},
                {"emu:1,cpu=scalar", "off", "hybrid", DECODE_HYBRID},
                {"emu:1,cpu=scalar", "off", "dual", DECODE_DUAL},
                {"emu:1,cpu=scalar", "off", "dual", DECODE_DUAL, DRAFT_LOOKUP},
                {"emu:1,cpu=scalar", "2", "dual", DECODE_DUAL},
                {"emu:1,cpu=scalar", "auto", "hybrid", DECODE_HYBRID},
                {"emu:2,cpu=scalar,parallel=layers", "layers", "dual", DECODE_DUAL},
                {"emu:2,cpu=scalar,parallel=layers", "off", "hybrid", DECODE_HYBRID},
                {"emu:1,cpu=scalar,mem=6M", "layers", "hybrid", DECODE_HYBRID},
                {"emu:1,cpu=scalar,mem=8M", "layers", "hybrid", DECODE_HYBRID},
                {"emu:1,cpu=scalar,mem=10M", "layers", "dual", DECODE_DUAL}};
    struct text none = text_of((struct engine_params){.decode = DECODE_CPU}, "cpu"), off;
    for (int n = 0; n <= 2; n++) {
        const struct text want = text_of((struct engine_params){.decode = DECODE_CPU, .defer = n}, "cpu");
        if (n) assert_memory_not_equal(&want, &off, sizeof want);
        else assert_memory_equal(&want, &none, sizeof want); /* 0 is no option */
        off = want;
        for (size_t i = 0; i < (n == 1 ? sizeof ways / sizeof *ways : n ? 0 : 2); i++) {
            const struct text got = text_of(
                (struct engine_params){.gpus = ways[i].gpus, .expert_cache = ways[i].cache, .decode = ways[i].decode, .draft = ways[i].draft, .defer = n},
                ways[i].mode);
            if (memcmp(&got, &want, sizeof got))
                fail_msg("defer %d: another text on %s, experts %s, %s", n, ways[i].gpus ? ways[i].gpus : "the CPU", ways[i].cache, ways[i].mode);
        }
    }
}

static void what_is_refused(void **st) {
    static const struct {
        struct engine_params p;
        const char *why;
    } cases[] = {{{.defer = 4}, "--defer 4: ember chooses 4 experts for a token; at most 3 can be deferred"},
                 {{.defer = 1, .gpus = "emu:1", .decode = DECODE_PAGED}, "--decode paged cannot be combined with --defer"},
                 {{.defer = 1, .gpus = "emu:2,parallel=tensor"}, "--defer cannot be combined with parallel=tensor"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine_params p = cases[i].p;
        struct engine *e;
        struct error err = {0};
        p.dir = "ember:";
        assert_int_equal(engine_open(&e, &p, &err), ERR_USAGE);
        if (!strstr(err.text, cases[i].why)) fail_msg("%s", err.text);
    }
}

int main(void) {
    file_embed(ember_files);
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_defined), cmocka_unit_test(same_text_everywhere), cmocka_unit_test(what_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
