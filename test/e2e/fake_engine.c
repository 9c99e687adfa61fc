/* An engine without weights, for driving the real command line in tests. Its answer depends on the user's message, so
 * that a test can request escape sequences, thinking, long answers, slow prefills and failures. Tests only the terminal
 * and the conversation, nothing of the model. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/ember/ember.h"
#include "engine/engine.h"
#include "test/e2e/fake_text.h"

static const uint8_t nothing[1] = {0};
const struct file_embedded ember_files[] = {{"config.json", nothing, nothing}, {NULL, NULL, NULL}};

enum {
    max_events = 1 << 16,
    context = 65536,
    PAUSE = 0x12 /* in a plan: generates nothing more until it is cancelled */
};

struct session {
    struct engine *e;
    struct session *next;
    struct buf plan; /* bytes to emit; 0x0E to 0x11 stand for the marks of thinking and tool calls */
    size_t at;
    int32_t *is_held; /* the tokens that a KV cache would hold */
    int n_held, n_answer, max, prompt, n_top;
    double progress_s; /* between two progress reports of a prefill */
    double start, prefill_until, prefill_s, last_progress, token_s, first_token_at;
    uint64_t disk_keys[2];
    size_t n_keys;
    bool fail, stubborn; /* stubborn: ignores session_cancel, as an engine that hangs would */
    _Atomic bool busy, cancel;
};
struct engine {
    pthread_t thread;
    pthread_mutex_t lock;
    struct session *sessions;
    struct event queue[max_events];
    unsigned head, tail;
    int event_fd;
    bool stop;
    char dir[64];
    struct engine_info info;
};
static _Atomic int n_open; /* engines */

static void post(struct engine *eng, struct event ev) {
    eng->queue[eng->tail++ % max_events] = ev;
    uint64_t one = 1;
    if (write(eng->event_fd, &one, sizeof one) < 0) return;
}

static void end(struct session *s, enum event_kind kind, enum done_reason reason) {
    struct event ev = {.kind = kind, .session = s, .reason = reason};
    ev.stats = (struct turn_stats){.prompt_tokens = s->prompt,
                                   .answer_tokens = s->n_answer,
                                   .ttft_s = s->n_answer ? s->first_token_at - s->start : 0,
                                   .prefill_s = s->prefill_s,
                                   .decode_s = clock_now() - s->first_token_at,
                                   .bytes_read = 12345678,
                                   .prefill_mode = "cpu",
                                   .decode_mode = "single",
                                   .prefill_why = "fake: only one mode"};
    if (kind == EVENT_ERROR) error_set(&ev.error, ERR_RUNTIME, "layer 3: non-finite logits");
    atomic_store(&s->busy, false);
    post(s->e, ev);
}

/* The token has probability 1/2, the one after it 1/4, and so on. */
static struct token_logprobs fake_logprobs(const struct session *s, int32_t token) {
    struct token_logprobs p = {.logprob = -0.6931472f, .n_top = s->n_top};
    for (int i = 0; i < s->n_top; i++)
        p.top[i] = (struct top_logprob){(token + i) % VOCAB, -0.6931472f * (float)(i + 1)};
    return p;
}

static void step(struct session *s) {
    double now = clock_now();
    if (!atomic_load(&s->busy)) return;
    if (atomic_load(&s->cancel) && !s->stubborn) {
        end(s, EVENT_DONE, DONE_CANCELLED);
        return;
    }
    if (now < s->prefill_until) {
        if (now - s->last_progress < s->progress_s) return;
        s->last_progress = now;
        post(s->e, (struct event){.kind = EVENT_PROGRESS,
                                  .session = s,
                                  .done = (int)(1000 * (1 - (s->prefill_until - now) / s->prefill_s)),
                                  .total = 1000,
                                  .left_s = s->prefill_until - now});
        return;
    }
    if (now < s->first_token_at + s->n_answer * s->token_s) return;
    if (!s->n_answer) s->first_token_at = now;
    if (s->at < s->plan.len && s->plan.data[s->at] == PAUSE) return;
    if (s->at >= s->plan.len) {
        end(s, s->fail ? EVENT_ERROR : EVENT_DONE, DONE_STOP);
        return;
    }
    unsigned char c = (unsigned char)s->plan.data[s->at++];
    s->n_answer++;
    int32_t token = c >= 0x0E && c <= 0x11 ? THINK + c - 0x0E : c;
    post(s->e, (struct event){.kind = EVENT_TOKEN, .session = s, .token = token, .logprobs = fake_logprobs(s, token)});
    if (s->prompt + s->n_answer >= s->e->info.context) end(s, EVENT_DONE, DONE_CONTEXT);
    else if (s->n_answer == s->max) end(s, EVENT_DONE, DONE_LENGTH);
}

/* If the machine stalled, the answer did too: it does not end because other processes had the CPU. */
static void wait_with(struct session *s, double still) {
    s->start += still, s->prefill_until += still, s->last_progress += still, s->first_token_at += still;
}

static void *work(void *arg) {
    struct engine *eng = arg;
    double last = clock_now();
    for (bool stop = false; !stop;) {
        pthread_mutex_lock(&eng->lock);
        const double still = clock_now() - last;
        last += still;
        for (struct session *s = eng->sessions; s; s = s->next) {
            if (still > 0.02) wait_with(s, still);
            step(s);
        }
        stop = eng->stop;
        pthread_mutex_unlock(&eng->lock);
        usleep(500);
    }
    return NULL;
}

/* Takes FAKE_LOAD seconds. Returns false if it is cancelled. */
static bool load(const struct engine_params *p, const char *what) {
    const char *slow = getenv("FAKE_LOAD");
    double t0 = clock_now(), total = slow ? atof(slow) : 0;
    for (double t; (t = clock_now() - t0) < total; usleep(50000))
        if (p->progress(p->progress_ctx, what, t / total)) return false;
    return true;
}

int engine_open(struct engine **out, const struct engine_params *p, struct error *e) {
    struct engine *eng = mem_calloc(1, sizeof *eng);
    if (!eng) return error_set(e, ERR_MEMORY, "no memory");
    if (p->gpus && strcmp(p->gpus, "none")) {
        mem_free(eng);
        return error_set(e, ERR_RUNTIME, "--gpus %s: no such device here", p->gpus);
    }
    const char *dir = strrchr(p->dir, '/'); /* models named "bad..." do not open, "large..." not beside another */
    dir = dir ? dir + 1 : p->dir;
    const bool is_bad = !strncmp(dir, "bad", 3), is_large = !strncmp(dir, "large", 5) && n_open;
    if (is_bad || is_large || !load(p, "opening")) {
        mem_free(eng);
        return is_bad     ? error_set(e, ERR_MODEL, "%s: a tensor is missing", dir)
               : is_large ? error_set(e, ERR_MEMORY, "%s: not enough memory", dir)
                          : error_set(e, ERR_CANCELLED, "cancelled");
    }
    n_open++;
    snprintf(eng->dir, sizeof eng->dir, "%s", dir);
    static const int32_t eos[] = {EOS};
    eng->info = (struct engine_info){.model_type = "fake",
                                     .name = "fake",
                                     .vocab = VOCAB,
                                     .n_layers = 1,
                                     .hidden = 1,
                                     .n_experts = 1,
                                     .topk = 1,
                                     .no_images = "it is a fake",
                                     .context = p->context ? p->context : context,
                                     .max_context = context,
                                     .threads = 1,
                                     .level = "scalar",
                                     .eos = eos,
                                     .n_eos = 1,
                                     .temperature = 0.5,
                                     .top_p = NAN,
                                     .min_p = NAN,
                                     .repeat_penalty = NAN,
                                     .do_sample = true,
                                     .kv_token_bytes = 64,
                                     .weight_bytes = 12345,
                                     .fingerprint = 7};
    eng->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&eng->lock, NULL);
    pthread_create(&eng->thread, NULL, work, eng);
    *out = eng;
    return 0;
}
void engine_close(struct engine **out) {
    struct engine *eng = *out;
    if (!eng) return;
    while (eng->sessions) session_close(&(struct session *){eng->sessions});
    pthread_mutex_lock(&eng->lock);
    eng->stop = true;
    pthread_mutex_unlock(&eng->lock);
    pthread_join(eng->thread, NULL);
    close(eng->event_fd);
    mem_free(eng);
    n_open--;
    *out = NULL;
}
const struct engine_info *engine_info(const struct engine *eng) { return &eng->info; }
int engine_add_eos(struct engine *eng, int32_t id, struct error *e) { return 0; }
int engine_inspect(const struct engine_params *p, struct buf *json, struct error *e) {
    return buf_str(json, "{\"family\": \"fake\", \"bytes\": {\"all\": 1000, \"per_token\": 500}, \"layers\": 1, "
                         "\"total_bytes\": 123456789, \"dtypes\": "
                         "{\"F8_E4M3\": 3}, \"skipped\": [\"a\", "
                         "\"b\\u001b]0;title\\u0007\\u009b31m\"]}");
}
int engine_verify(const struct engine_params *p, struct error *e) {
    load(p, "verify");
    return 0;
}
int engine_describe(const struct engine_params *p, struct buf *out, struct error *e) { return buf_str(out, "fake\n"); }
int engine_store_tuned(const struct engine_params *p, uint64_t fingerprint, const char *choice, const char *why,
                       struct error *e) {
    return 0;
}
void engine_find_gpus(struct engine_gpus *out) { /* FAKE_GPUS: "0", "0 tried" or "trouble"; none of them can be opened
                                                  */
    const char *found = getenv("FAKE_GPUS");
    *out = (struct engine_gpus){.text = "a fake", .is_tried = found && strstr(found, "tried")};
    if (found && !strcmp(found, "trouble")) snprintf(out->trouble, sizeof out->trouble, "the fake's driver is too old");
    else if (found) snprintf(out->list, sizeof out->list, "%.1s", found);
}
int engine_plan(const struct engine_params *p, const char *machine, const char *arch, struct buf *json,
                struct error *e) {
    return error_set(e, ERR_USAGE, "%s: no machine file", machine);
}
int engine_bench_kernels(int threads, int (*fn)(void *ctx, const char *row), void *ctx, struct error *e) {
    for (int i = 0; i < 2000; i++)
        if (fn(ctx, "{\"kernel\": \"fake\", \"level\": \"scalar\", \"format\": \"F8_E4M3\", \"tokens\": 2, \"shape\": "
                    "\"1x1\", \"threads\": 1, \"gbps\": 1.0, "
                    "\"limit\": 2.0, \"share\": 0.5}"))
            return error_set(e, ERR_CANCELLED, "cancelled");
    return 0;
}
double engine_read_bandwidth(struct engine *eng, int rounds) { return 1e9; }
uint64_t engine_token_bytes(const struct engine *eng) { return 1000; }
/* Three layers, the first without experts. In the second one expert is used most, one never, one is on device 1; in the
 * third all are equal. */
int engine_announce(struct engine *eng, const struct announced_load *load) { return 0; }
int engine_expert_map(struct engine *eng, struct expert_map *m, struct error *e) {
    *m = (struct expert_map){.n_layers = 3,
                             .n_experts = 8,
                             .n_used = mem_calloc(24, sizeof *m->n_used),
                             .device_rank = mem_alloc(24),
                             .n_devices = 2};
    m->device[0] =
        (struct expert_device){.layers = 1, .resident_layers = 1, .resident_bytes = 3000000, .chosen = 70, .hits = 70};
    m->device[1] =
        (struct expert_device){.rank = 1, .layers = 1, .cached = 1, .cached_bytes = 500000, .chosen = 152, .hits = 100};
    if (!m->n_used || !m->device_rank) return error_set(e, ERR_MEMORY, "no memory");
    memset(m->device_rank, -1, 24);
    for (int i = 8; i < 24; i++) m->n_used[i] = 10;
    m->n_used[8 + 2] = 100, m->n_used[8 + 5] = 0, m->n_used[8 + 6] = 2, m->device_rank[8 + 2] = 1;
    return 0;
}
void engine_expert_map_free(struct expert_map *m) { mem_free(m->n_used), mem_free(m->device_rank); }
uint64_t engine_token_flops(const struct engine *eng) { return 1000; }

int session_open(struct engine *eng, struct session **out, struct error *e) {
    struct session *s = mem_calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory");
    s->e = eng;
    pthread_mutex_lock(&eng->lock);
    s->next = eng->sessions;
    eng->sessions = s;
    pthread_mutex_unlock(&eng->lock);
    *out = s;
    return 0;
}
int session_fork(struct session *from, struct session *to, struct error *err) {
    int32_t *held = mem_alloc(((size_t)from->n_held + 1) * sizeof *held);
    if (!held) return error_set(err, ERR_MEMORY, "no memory");
    if (from->n_held) memcpy(held, from->is_held, (size_t)from->n_held * sizeof *held);
    mem_free(to->is_held);
    to->is_held = held, to->n_held = from->n_held;
    return 0;
}
void session_close(struct session **out) {
    struct session *s = *out;
    if (!s) return;
    pthread_mutex_lock(&s->e->lock);
    struct session **at = &s->e->sessions;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&s->e->lock);
    buf_free(&s->plan);
    mem_free(s->is_held);
    mem_free(s);
    *out = NULL;
}

/* Adds the answer that a JSON list of strings gives to this number of earlier answers to the same question. A character
 * from U+E000 to U+E0FF stands for a byte. */
static void say(struct buf *b, const char *list, size_t n, uint32_t n_earlier) {
    struct arena arena = {0};
    struct json j;
    if (json_parse(&arena, list, n, 0, "say", &j, NULL) || j.type != JSON_ARRAY || n_earlier >= j.n)
        buf_str(b, "nothing more");
    else
        for (uint32_t i = 0; i < j.items[n_earlier].n; i++) {
            const unsigned char *c = (const unsigned char *)j.items[n_earlier].string + i;
            const bool is_byte = c[0] == 0xEE && c[1] >= 0x80 && c[1] <= 0x83;
            buf_char(b, (char)(is_byte ? (c[1] & 3) << 6 | (c[2] & 0x3F) : c[0]));
            if (is_byte) i += 2;
        }
    arena_free(&arena);
}

/* Chooses the answer to the last user message: "COMMAND rest". Some commands echo parts of the request: its settings,
 * or the whole prompt. */
static void make_plan(struct session *s, const struct request *r, const char *prompt, const char *user, size_t n,
                      const char *result) {
    char word[32] = "";
    struct buf *b = &s->plan;
    size_t w = strcspn(user, " \n\1");
    if (w > n) w = n;
    snprintf(word, sizeof word, "%.*s", (int)w, user);
    s->prefill_s = 0.01;
    s->progress_s = 0.05;
    s->token_s = 0.001;
    s->fail = s->stubborn = false;
    b->len = 0;
    if (!strcmp(word, "say")) {
        uint32_t n_answers = 0;
        for (const char *at = user + n; (at = strstr(at, "\1assistant\2")); at++) n_answers++;
        say(b, user + w, n - w, n_answers - 1);
        s->token_s = 0;
    } else if (!strcmp(word, "escape"))
        buf_str(b, "A\033[31mred\033]0;title\007B\b\bC\rD\xC2\x9B"
                   "31mE\x7F.");
    else if (!strcmp(word, "table"))
        buf_str(b, "| name | what it does |\n|---|---|\n| first | one two three four five six seven eight nine ten "
                   "eleven twelve thirteen fourteen |\n| second "
                   "| short |\n");
    else if (!strcmp(word, "source"))
        buf_str(b, "# Head\n\nSome **bold** text.\n\n```python\ndef f(x):  # a comment if any\n    return \"a string "
                   "for it\" + x\n```\n\n```\nif "
                   "plain\n```\n\nend of it");
    else if (!strcmp(word, "ponder")) { /* thinks for more than a second, then answers for more than ten */
        buf_char(b, 0x0E);
        for (int i = 0; i < 60; i++) buf_fmt(b, "idea%d ", i);
        buf_str(b, "\x0F\n\n");
        for (int i = 0; i < 60; i++) buf_fmt(b, "w%d ", i);
        s->token_s = 0.02;
    } else if (!strcmp(word, "think")) buf_str(b, "\x0Ereasoning here\x0F\n\nthe answer");
    else if (!strcmp(word, "late")) s->prefill_s = buf_str(b, "\x0Ereasoning\x0F\n\nthe answer") ? 0 : 3;
    else if (!strcmp(word, "call"))
        buf_str(b, "\x0Ewhich one?\x0F"
                   "Let me see.\x10{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern "
                   "\\ud83d\\ude00\"}}\x11\x10{\"name\": \"time\"}\x11");
    else if (!strcmp(word, "use") && result) buf_fmt(b, "It says: %.*s.", (int)strcspn(result, "\1"), result);
    /* calls NAME with ARGUMENTS, twice if they are followed by a comma */
    else if (!strcmp(word, "use") || !strcmp(word, "loop")) {
        const size_t name = w + 1 < n ? strcspn(user + w + 1, " ") : 0, skip = w + name + 2,
                     rest = n > skip ? n - skip : 0;
        const bool twice = rest && user[n - 1] == ',';
        if (result) buf_str(b, "Again. ");
        for (int i = 0; i < 1 + twice; i++)
            buf_fmt(b, "\x10{\"name\": \"%.*s\", \"arguments\": %.*s}\x11", (int)name, user + w + 1,
                    rest ? (int)rest - twice : 2, rest ? user + skip : "{}");
    } else if (!strcmp(word, "nonsense")) buf_str(b, "\x10{\"name\": 5}\x11");
    else if (!strcmp(word, "code")) buf_str(b, "Sure:\n```sh\necho hi\n```\nand\n```\nother\n```\n");
    else if (!strcmp(word, "edit")) { /* a whole file: its name, and the rest of the line as its text */
        const size_t line = strcspn(user, "\n\1"), name = w + 1 < line ? strcspn(user + w + 1, " \n") : 0,
                     skip = w + name + 2;
        buf_fmt(b, "%.*s\n```\n%.*s\n```\n", (int)name, user + w + 1, line > skip ? (int)(line - skip) : 0,
                user + skip);
    } else if (!strcmp(word, "lines")) buf_str(b, "\none\n\ntwo\n\n\n");
    else if (!strcmp(word, "fail")) s->fail = !buf_str(b, "begun");
    else if (!strcmp(word, "broken")) buf_str(b, "x\xFF\xE2\x82y");
    else if (!strcmp(word, "markdown"))
        buf_str(b, "# Title\n\nSome **bold words** and `code` in a paragraph that is longer than a row of eighty "
                   "columns, with more.\n\n- an item\n\n"
                   "```c\nint x;\n```\n\n| name | n |\n|---|--:|\n| a | 1 |\n| long name | 20 |\n\nSee "
                   "https://example.org/x.");
    else if (!strcmp(word, "wide"))
        buf_str(b, "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC"
                   "\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E"
                   "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC"
                   "\xE8\xAA\x9E "
                   "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 e\xCC\x81t\xC3\xA9 end");
    else if (!strcmp(word, "layers")) {
        buf_str(b, "read");
        s->prefill_s = 5;
        s->progress_s = 2;
    } else if (!strcmp(word, "read") || !strcmp(word, "drip")) { /* until the client leaves */
        for (int i = 0; i < 1000; i++) buf_fmt(b, "d%d ", i);
        if (word[0] == 'r') s->prefill_s = 120;
        s->token_s = 0.03;
    } else if (!strcmp(word, "odds")) { /* fails if the seed is even, else takes minutes */
        s->fail = r->sampling.seed % 2 == 0;
        for (int i = 0; i < (s->fail ? 1 : 10000); i++) buf_fmt(b, "d%d ", i);
        s->token_s = s->fail ? 0.001 : 0.03;
    } else if (!strcmp(word, "slow")) {
        for (int i = 0; i < 60; i++) buf_fmt(b, "w%d ", i);
        s->token_s = 0.02;
    } else if (!strcmp(word, "rows")) {
        for (int i = 0; i < 60; i++) buf_fmt(b, "row %d\n", i);
        s->token_s = 0.005;
    } else if (!strcmp(word, "ledger")) { /* a table without end */
        buf_str(b, "| n | name |\n|--:|---|\n");
        for (int i = 0; i < 10000; i++) buf_fmt(b, "| %d | row %d |\n", i, i);
        s->token_s = 0.002;
    } else if (!strcmp(word, "Below") && getenv("FAKE_NOTES")) { /* a part of --long split */
        const char *notes = getenv("FAKE_NOTES");
        s->fail = !strcmp(notes, "fail");
        if (!strcmp(notes, "slow")) s->token_s = 60;
        buf_str(b, s->fail ? "begun" : notes);
    } else if (!strcmp(word, "Summarise")) buf_str(b, getenv("FAKE_SUMMARY") ? getenv("FAKE_SUMMARY") : "the gist");
    else if (!strcmp(word, "sampling")) {
        const struct sampling *a = &r->sampling;
        buf_fmt(b, "temp %g top-p %g top-k %d min-p %g repeat-penalty %g seed %llu max %d", a->temperature, a->top_p,
                a->top_k, a->min_p, a->repeat_penalty, (unsigned long long)a->seed, r->max_tokens);
        if (a->presence_penalty != 0) buf_fmt(b, " presence-penalty %g", a->presence_penalty);
        if (a->frequency_penalty != 0) buf_fmt(b, " frequency-penalty %g", a->frequency_penalty);
        if (a->top_n_sigma != 0) buf_fmt(b, " top-n-sigma %g", a->top_n_sigma);
        if (a->dry.multiplier != 0) {
            buf_fmt(b, " dry-multiplier %g dry-base %g dry-allowed-length %d dry-penalty-last-n %d", a->dry.multiplier,
                    a->dry.base, a->dry.allowed_length, a->dry.last_n);
            for (const char *text = a->dry.breakers; *text; text += strlen(text) + 1) buf_fmt(b, " breaker <%s>", text);
        }
        for (int i = 0; i < a->n_bias; i++) buf_fmt(b, " bias-%d %g", a->bias[i].id, a->bias[i].bias);
    } else if (!strcmp(word, "who")) buf_str(b, s->e->dir);
    else if (!strcmp(word, "flags")) buf_str(b, r->flags & REQ_EXACT_PREFIX_ONLY ? "exact prefix only" : "any prefix");
    else if (!strcmp(word, "prompt")) {
        for (int i = 0; i < r->n; i++) buf_char(b, prompt[i] == 1 ? '[' : prompt[i] == 2 ? ']' : prompt[i]);
    } else if (!strcmp(word, "stubborn")) {
        for (int i = 0; i < 4000; i++) buf_fmt(b, "deaf%d ", i);
        s->stubborn = true;
    } else if (!strcmp(word, "long") || !strcmp(word, "prefill")) {
        if (word[0] == 'p') s->prefill_s = 3;
        for (int i = 0; i < 200; i++) buf_fmt(b, "word%d ", i);
        s->token_s = 0.002;
        if (word[0] == 'p') b->len = 5;
    } else {
        buf_str(b, "You said: ");
        buf_add(b, user, n);
    }
}

int session_submit(struct session *s, const struct request *r, struct error *e) {
    if (atomic_load(&s->busy)) return error_set(e, ERR_RUNTIME, "the session is busy");
    if (getenv("FAKE_SIGNAL")) raise(atoi(getenv("FAKE_SIGNAL"))); /* just before the turn begins */
    if (r->n + 1 > s->e->info.context)
        return error_set(e, ERR_CONTEXT, "the prompt is %d tokens; this model's context is %d", r->n,
                         s->e->info.context);
    char *text = mem_alloc((size_t)r->n + 1);
    if (!text) return error_set(e, ERR_MEMORY, "no memory");
    for (int i = 0; i < r->n; i++) text[i] = (char)r->tokens[i];
    text[r->n] = 0;
    const char *user = text;
    for (const char *at = text; (at = memmem(at, (size_t)(text + r->n - at), "\1user\2", 6)); at += 6) user = at + 6;
    const char *stop = memchr(user, 1, (size_t)(text + r->n - user));
    pthread_mutex_lock(&s->e->lock);
    buf_free(&s->plan);
    const char *result = strstr(user, "\1tool\2");
    make_plan(s, r, text, user, stop ? (size_t)(stop - user) : strlen(user), result ? result + 6 : NULL);
    if (s->plan.failed) {
        pthread_mutex_unlock(&s->e->lock);
        mem_free(text);
        return error_set(e, ERR_MEMORY, "no memory");
    }
    int said = 0; /* continues after what it wrote before */
    while (said < r->n && r->tokens[r->n - 1 - said] != 2) said++;
    if (said == r->n) said = 0; /* a raw prompt: it contains no answer */
    s->at = (size_t)said < s->plan.len ? (size_t)said : s->plan.len;
    s->n_answer = 0;
    s->max = r->max_tokens;
    s->n_top = r->n_top_logprobs;
    s->prompt = r->n;
    s->disk_keys[0] = 0xfeed, s->disk_keys[1] = (uint64_t)r->n;
    s->n_keys = r->flags & REQ_NO_DISK_CACHE ? 0 : 2;
    s->start = clock_now();
    s->first_token_at = s->prefill_until = s->start + s->prefill_s;
    atomic_store(&s->cancel, false);
    atomic_store(&s->busy, true);
    pthread_mutex_unlock(&s->e->lock);
    mem_free(text);
    return 0;
}
int session_submit_answer(struct session *s, int n_prompt, const int32_t *tokens, int n, int max_tokens,
                          struct error *e) {
    return error_set(e, ERR_RUNTIME, "this engine says what it was made to say, nothing else");
}
void session_cancel(struct session *s) { atomic_store(&s->cancel, true); }
bool session_busy(const struct session *s) { return atomic_load(&s->busy); }
int session_tokens(const struct session *s, const int32_t **tokens) {
    *tokens = s->is_held;
    return s->n_held;
}
int session_shared_tokens(const struct session *s) { return 0; }
uint64_t engine_shared_bytes(const struct engine *eng) { return 0; }
/* As if one batch began all prompts, and another belonged to this prompt only. */
size_t session_disk_keys(const struct session *s, const uint64_t **keys) {
    *keys = s->disk_keys;
    return s->n_keys;
}
/* The fake engine reads no images; the commands about them are tested with a real one (test_images.py). */
const char *engine_image_kind(const void *data, size_t n) {
    return n >= 4 && !memcmp(data, "\x89PNG", 4) ? "PNG" : NULL;
}
int engine_image_open(struct engine *eng, const void *data, size_t n, const char *what, struct engine_image **out,
                      struct error *e) {
    *out = NULL;
    return error_set(e, ERR_USAGE, "%s: fake cannot read images: this model reads text only", what);
}
void engine_image_close(struct engine_image **image) { *image = NULL; }
struct engine_image_info engine_image_info(const struct engine_image *image) {
    return (struct engine_image_info){0};
}
void engine_image_ids(const struct engine_image *image, int32_t *out) {}

int engine_forget(const char *dir, const uint64_t *keys, size_t n, struct error *e) {
    char path[4096];
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%016llx.kv", dir, (unsigned long long)keys[i]);
        unlink(path);
    }
    return 0;
}
bool engine_poll(struct engine *eng, struct event *out, int timeout_ms) {
    struct pollfd p = {.fd = eng->event_fd, .events = POLLIN};
    for (;;) {
        pthread_mutex_lock(&eng->lock);
        bool got = eng->head != eng->tail;
        if (got) *out = eng->queue[eng->head++ % max_events];
        uint64_t n;
        if (eng->head == eng->tail && read(eng->event_fd, &n, sizeof n) < 0) n = 0;
        pthread_mutex_unlock(&eng->lock);
        if (got) return true;
        if (!timeout_ms || poll(&p, 1, timeout_ms) <= 0) return false;
    }
}
int engine_event_fd(const struct engine *eng) { return eng->event_fd; }
