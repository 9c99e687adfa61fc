/* Device KV is shared where sessions have a common prefix: forks, forks of forks, sessions that rewind, start anew or
 * are closed. The text and every bit of the host's caches are as if each session had its own copy; memory is checked by
 * the devices' own count. usage: test_shared [cuda] [DIR...]    The built-in model, or these; cuda: on a card, or in
 * its emulation, one case each */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/ember/ember.h"
#include "engine/exec/decode/decode_state.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/layer/kv_planes.h"
#include "engine/session/engine_state.h"
#include "test/env.h"

enum { FORKS = 8, ANSWER = 5, MOST = 4200 };
static int failed;

static void die(const char *what, const struct error *err) {
    printf("FAIL %s: %s\n", what, err->text);
    exit(1);
}
static void check(bool right, const char *dir, const char *gpus, const char *what) {
    if (right) return;
    failed++;
    printf("FAIL %s on %s: %s\n", dir, gpus, what);
}

struct setting {
    const char *dir, *gpus;
    enum exec_mode decode;
    enum exec_mode prefill;
    uint8_t kv;
    bool apart; /* each session has its own copy */
};
struct run {
    const struct setting *set;
    struct engine *e;
    int ids;
    uint64_t said; /* checksum of all answers and caches so far */
};

static void open_run(struct run *r, const struct setting *set) {
    struct error err = {0};
    struct engine_params p = {.dir = set->dir,
                              .threads = 1,
                              .gpus = set->gpus,
                              .prefill = set->prefill,
                              .decode = set->decode,
                              .kv = set->kv,
                              .expert_cache = "off",
                              .deterministic = true, /* a blended prompt's last bits depend on the executor */
                              .context = strcmp(set->dir, "ember:") ? 1024 : 8192};
    *r = (struct run){.set = set};
    if (engine_open(&r->e, &p, &err)) die(set->gpus, &err);
    if (set->apart) r->e->machine.kv_common_rows = NULL;
    r->ids = engine_info(r->e)->vocab < 500 ? engine_info(r->e)->vocab : 500;
}
static struct session *opened(struct run *r) {
    struct error err = {0};
    struct session *s;
    if (session_open(r->e, &s, &err)) die(r->set->gpus, &err);
    return s;
}
static struct session *forked(struct run *r, struct session *from) {
    struct error err = {0};
    struct session *s = opened(r);
    if (session_fork(from, s, &err)) die(r->set->gpus, &err);
    return s;
}

static uint64_t cached(const struct session *s) {
    uint64_t sum = 0;
    for (int l = 0; l < s->kv.n_layers; l++) {
        struct cache_desc desc[CACHE_PLANES];
        for (int p = kv_planes(s->kv.c, l, desc); p-- > 0;) {
            struct kv_row_range rows = kv_row_range_of(&s->kv.layer[l].p[p], 0, kv_complete_rows(&desc[p], s->n_kv));
            if (!desc[p].fixed_rows) sum = hash64(s->kv.layer[l].p[p].data, rows.bytes, sum);
        }
    }
    return sum;
}

/* All of them in one batch: each keeps `keep` of its tokens and continues with `more` others of its own kind. */
static void ask(struct run *r, struct session *const *s, int n, int keep, int more, int kind) {
    struct error err = {0};
    struct event ev;
    int32_t out[FORKS + 1][ANSWER] = {0};
    int got[FORKS + 1] = {0};
    for (int i = 0; i < n; i++) {
        int32_t tokens[MOST];
        const int32_t *had;
        const int have = session_tokens(s[i], &had), kept = keep < have ? keep : have;
        if (kept) memcpy(tokens, had, (size_t)kept * sizeof *had);
        for (int k = 0; k < more; k++) tokens[kept + k] = ((kept + k) * 37 + k / 7 + 11 + kind * i) % r->ids;
        if (session_submit(
                s[i],
                &(struct request){.tokens = tokens, .n = kept + more, .max_tokens = ANSWER, .flags = REQ_IGNORE_EOS},
                &err))
            die(r->set->gpus, &err);
    }
    for (int left = n; left;) {
        engine_poll(r->e, &ev, -1);
        if (ev.kind == EVENT_ERROR) die(r->set->gpus, &ev.error);
        for (int i = 0; i < n; i++)
            if (ev.kind == EVENT_TOKEN && ev.session == s[i]) out[i][got[i]++] = ev.token;
        left -= ev.kind == EVENT_DONE;
    }
    r->said = hash64(out, sizeof out, r->said);
    for (int i = 0; i < n; i++) r->said += cached(s[i]) * (uint64_t)(i + 1);
}

/* Bytes of device KV on all devices, by their own count: everything except weights. */
static size_t held(const struct run *r) {
    const struct decode *s = r->e->machine.decode;
    size_t bytes = 0;
    for (int i = 0; i < s->n_dev; i++)
        bytes += decode_held_bytes(s, s->dev[i].rank) - ledger_bytes(s->dev[i].ledger, LEDGER_WEIGHTS);
    return bytes;
}
/* Memory of a session besides blocks; memory of a slab. */
static size_t own_bytes(const struct run *r) {
    const struct decode *s = r->e->machine.decode;
    size_t bytes = 0;
    for (int i = 0; i < s->n_dev; i++) bytes += s->device_kvs->mem[i].bytes;
    return bytes;
}
static size_t slab_bytes(const struct run *r) {
    const struct decode *s = r->e->machine.decode;
    size_t bytes = 0;
    for (int i = 0; i < s->n_dev; i++) bytes += device_slab_layout(&s->dev[i], NULL);
    return bytes;
}

/* Most bytes of a slab on one device that holds each row once: planes are aligned. */
static size_t most_slab_bytes(const struct run *r) {
    const struct decode *s = r->e->machine.decode;
    return (size_t)(s->slab_blocks * s->block_positions) * kv_token_bytes(s->c, s->kv) +
           (size_t)s->c->n_layers * CACHE_PLANES * 512;
}

static size_t slabs(const struct run *r) {
    size_t n = 0;
    for (const struct device_slab *l = r->e->machine.decode->slabs; l; l = l->next) n++;
    return n;
}
static int used(const struct run *r) { /* blocks */
    int n = 0;
    for (const struct device_slab *l = r->e->machine.decode->slabs; l; l = l->next) n += l->n_used;
    return n;
}

/* A chat of n tokens, its forks, a fork of one, and their ends. one, all: bytes of the first, and with its forks. */
static uint64_t chats(const struct setting *set, int n, size_t *one, size_t *all) {
    struct run r;
    struct session *s[FORKS + 1];
    open_run(&r, set);
    s[0] = opened(&r);
    ask(&r, s, 1, 0, n, 0);
    *one = held(&r);
    for (int i = 1; i <= FORKS; i++) s[i] = forked(&r, s[0]);
    ask(&r, s, FORKS + 1, MOST, 1, 3);
    *all = held(&r);
    const struct decode *step = r.e->machine.decode;
    const int same = (n + ANSWER - 1) / step->block_positions,
              each = (n + 2 * ANSWER - 2 + step->block_positions) / step->block_positions;
    check(used(&r) == (set->apart ? (FORKS + 1) * each : same + (FORKS + 1) * (each - same)), set->dir, set->gpus,
          "blocks are more or fewer than are needed");
    check(*all == slabs(&r) * slab_bytes(&r) + (FORKS + 1) * own_bytes(&r), set->dir, set->gpus,
          "bytes are not those of blocks");
    check(step->n_dev > 1 || slab_bytes(&r) <= most_slab_bytes(&r), set->dir, set->gpus,
          "a slab has more than one copy of a row");
    ask(&r, s, 1, n / 2, 40, 0); /* the first rewinds into the prefix that all share */
    session_close(&s[0]);
    s[0] = forked(&r, s[1]);
    ask(&r, s, 3, MOST, 45, 7); /* a fork, a fork of it, and another one */
    for (int i = 3; i <= FORKS; i++) session_close(&s[i]);
    ask(&r, s, 2, n - 5, 2, 5); /* both rewind into the middle of their shared rows */
    const uint64_t said = r.said;
    for (int i = 0; i < 3; i++) session_close(&s[i]);
    s[0] = opened(&r);
    ask(&r, s, 1, 0, 3, 0); /* the others are closed before its first batch */
    check(held(&r) == own_bytes(&r) + slab_bytes(&r), set->dir, set->gpus, "closed sessions left memory");
    session_close(&s[0]);
    engine_close(&r.e);
    return said;
}

static void alike(struct setting set, int n) {
    size_t one, all;
    const uint64_t together = chats(&set, n, &one, &all);
    set.apart = true;
    size_t one_apart, all_apart;
    const uint64_t apart = chats(&set, n, &one_apart, &all_apart);
    check(together == apart, set.dir, set.gpus, "the text is another one than with copies");
    printf("%s on %s, %d tokens: with %d forks %.3f of what one takes, %.3f with copies\n", set.dir, set.gpus, n, FORKS,
           (double)all / (double)one, (double)all_apart / (double)one_apart);
}

/* Eight forks of a chat of 4,096 tokens take the memory of 1.1. */
static void large(const char *gpus) {
    const struct setting set = {.dir = "ember:", .gpus = gpus, .prefill = PREFILL_CPU, .decode = DECODE_HYBRID};
    struct run r;
    struct session *s[FORKS + 1];
    open_run(&r, &set);
    s[0] = opened(&r);
    ask(&r, s, 1, 0, 4096, 0);
    const size_t one = held(&r);
    for (int i = 1; i <= FORKS; i++) s[i] = forked(&r, s[0]);
    ask(&r, s, FORKS + 1, MOST, 1, 3);
    const size_t all = held(&r);
    printf("ember: on %s, 4096 tokens: with %d forks %.3f of what one takes, %.2f MB\n", gpus, FORKS,
           (double)all / (double)one, (double)one / (1 << 20));
    check(one > 1 << 20 && (double)all <= 1.1 * (double)one, "ember:", gpus, "eight forks take more than 1.1 of one");
    for (int i = 0; i <= FORKS; i++) session_close(&s[i]);
    engine_close(&r.e);
}

/* Unused copies are evicted, and blocks that others read remain: with little memory all answers stay the same. */
static void crowded(void) {
    uint64_t said[2];
    for (int k = 0; k < 2; k++) {
        const struct setting set = {.dir = "ember:",
                                    .gpus = k ? "emu:1,mem=9M" : "emu:1",
                                    .prefill = PREFILL_CPU,
                                    .decode = DECODE_HYBRID,
                                    .kv = DT_F32};
        struct run r;
        struct session *s[FORKS + 1];
        open_run(&r, &set);
        for (int i = 0; i < FORKS; i += 2) {
            s[i] = opened(&r);
            ask(&r, &s[i], 1, 0, 450 + 20 * i, i);
            s[i + 1] = forked(&r, s[i]);
            ask(&r, &s[i + 1], 1, MOST, 3, 2);
        }
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < FORKS; i++) ask(&r, &s[i], 1, MOST, 2, round);
        size_t most = 0;
        for (struct device_kv *m = r.e->machine.decode->device_kvs; m; m = m->next) most++;
        check(k ? most < FORKS && most > 1 : most == FORKS, set.dir, set.gpus, "as many copies as there is room for");
        check(held(&r) >= slab_bytes(&r), set.dir, set.gpus, "no copy is left");
        for (int i = 0; i < FORKS; i++) session_close(&s[i]);
        engine_close(&r.e);
        said[k] = r.said;
    }
    check(said[0] == said[1], "ember:", "emu:1,mem=9M", "the text is another one where copies go");
}

int main(int argc, char **argv) {
    static const struct {
        const char *gpus;
        enum exec_mode decode;
        enum exec_mode prefill;
        uint8_t kv;
    } set[] = {{"emu:1", DECODE_HYBRID, PREFILL_CPU, DT_BF16},
               {"emu:2", DECODE_DUAL, PREFILL_BLEND, DT_E4M3},
               {"emu:2,parallel=tensor", DECODE_HYBRID, PREFILL_CPU, DT_F32},
               {"emu:2,parallel=tensor", DECODE_DUAL, PREFILL_CPU, DT_E4M3},
               {"emu:1,nograph", DECODE_HYBRID, PREFILL_BLEND, DT_BF16}};
    enum { SETS = sizeof set / sizeof *set };
    const bool cuda = argc > 1 && !strcmp(argv[1], "cuda");
    int k = 0;
    file_embed(ember_files);
    for (int i = 1 + cuda; i < argc; i++, k++)
        for (int j = 0; j < (cuda ? 1 : 2); j++) {
            const int at = (k + 2 * j) % SETS;
            alike((struct setting){.dir = argv[i],
                                   .gpus = cuda ? "0" : set[at].gpus,
                                   .decode = set[at].decode,
                                   .prefill = set[at].prefill,
                                   .kv = set[at].kv},
                  cuda ? 40 : 300);
        }
    if (argc > 1 + cuda) return failed != 0;
    for (int j = 0; j < (cuda ? 1 : SETS); j++)
        alike((struct setting){.dir = "ember:",
                               .gpus = cuda ? "0" : set[j].gpus,
                               .decode = set[j].decode,
                               .prefill = set[j].prefill,
                               .kv = set[j].kv},
              cuda ? 40 : 100);
    if (!cuda) large("emu:1"), large("emu:2"), crowded();
    return failed != 0;
}
