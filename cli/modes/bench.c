/* --bench: prefill and decode speed of the model. The limit in each row is memory bandwidth, measured in the same run:
 * each generated token reads its weights once. A prompt reads them at least once for all its tokens together, so that
 * it is limited by arithmetic: its row has GFLOP/s. */
#include "cli/modes/bench.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"

enum { DECODE_TOKENS = 32, MAX_SESSIONS = 4 };

struct bench {
    struct app *app;
    bool json, first; /* first: no row was printed yet */
    bool rows;        /* prints a row for each measurement; without: only the verdict */
    double bandwidth; /* bytes/s, last measurement */
    double limit;     /* mean of the measurements before and after a run */
};

static void print_row(struct bench *b, struct buf *line) {
    if (!b->rows) {
        buf_free(line);
        return;
    }
    progress_clear();
    if (b->json && !b->first) out_write(",\n ", 3);
    b->first = false;
    if (!b->json) buf_char(line, '\n');
    if (!line->failed) out_write(line->data, line->len);
    buf_free(line);
}

/* --- kernels ---------------------------------------------------------------------------------- */

/* Appends the string at key, padded to width. */
static void put_column(struct buf *line, const struct json *row, const char *key, int width) {
    const struct json *v = json_get(row, key);
    bool text = v && v->type == JSON_STRING;
    buf_fmt(line, "%-*.*s ", width, text ? (int)v->n : 0, text ? v->string : "");
}
static int print_kernel_row(void *ctx, const char *json) {
    struct bench *b = ctx;
    struct buf line = {0};
    struct arena arena = {0};
    struct json r;
    if (b->json) buf_str(&line, json);
    else if (!json_parse(&arena, json, strlen(json), 0, "bench", &r, NULL)) {
        const struct json *gbps = json_get(&r, "gbps");
        char tokens[24] = "";
        int n = (int)json_int(json_get(&r, "tokens"), 0);
        if (n > 0) snprintf(tokens, sizeof tokens, "%d token%s", n, n > 1 ? "s" : "");
        put_column(&line, &r, "kernel", 10);
        put_column(&line, &r, "format", 8);
        put_column(&line, &r, "level", 7);
        buf_fmt(&line, "%11s  ", tokens);
        put_column(&line, &r, "shape", 38);
        buf_fmt(&line, "%2d threads %9.1f %s  of %9.1f  %3.0f %%", (int)json_int(json_get(&r, "threads"), 0),
                json_num(gbps ? gbps : json_get(&r, "gflops"), 0), gbps ? "GB/s  " : "GFLOP/s",
                json_num(json_get(&r, "limit"), 0), 100 * json_num(json_get(&r, "share"), 0));
    }
    print_row(b, &line);
    arena_free(&arena);
    return out_failed();
}

/* --- the model -------------------------------------------------------------------------------- */

struct bench_result {
    double ttft_s, prefill_s, decode_s;
    int steps; /* of all sessions together in decode_s */
};

/* Each session prefills the same number of tokens and generates the same number; none ends early. The decode of several
 * is measured while all of them decode: from the last one's first token to the first end. */
static int run_sessions(struct bench *b, int sessions, int prompt, int decode, struct bench_result *res,
                        struct error *e) {
    struct session *s[MAX_SESSIONS] = {0};
    const struct engine_info *info = engine_info(b->app->engine);
    int32_t *ids = mem_alloc((size_t)prompt * sizeof *ids);
    int rc = ids ? 0 : error_set(e, ERR_MEMORY, "no memory"), left = sessions, started = 0, got[MAX_SESSIONS] = {0};
    double first = 0, last = 0;
    *res = (struct bench_result){0};
    for (int i = 0; i < sessions && !rc; i++) {
        /* different tokens in each session and run: no cache hits, and experts spread as in text */
        for (int k = 0; k < prompt; k++)
            ids[k] = (int32_t)(((uint64_t)k * 2654435761u + (uint64_t)i * 40503u + (uint64_t)prompt * 69069u) %
                               (uint64_t)info->vocab);
        struct request q = {.tokens = ids,
                            .n = prompt,
                            .max_tokens = decode,
                            .flags = REQ_IGNORE_EOS | REQ_NO_PREFIX_REUSE,
                            .sampling = {.top_p = 1, .repeat_penalty = 1}};
        if (!(rc = session_open(b->app->engine, &s[i], e))) rc = session_submit(s[i], &q, e);
    }
    for (struct event ev; left && !rc;) {
        if (!engine_poll(b->app->engine, &ev, -1)) continue;
        if (ev.kind == EVENT_TOKEN) {
            int i = 0;
            while (i < sessions - 1 && s[i] != ev.session) i++;
            last = clock_now();
            if (!got[i]++ && ++started == sessions) first = last;
            else if (started == sessions && left == sessions) res->steps++, res->decode_s = last - first;
        } else if (ev.kind == EVENT_ERROR) {
            *e = ev.error;
            rc = e->code;
        } else if (ev.kind == EVENT_DONE) {
            left--;
            if (ev.stats.ttft_s > res->ttft_s) res->ttft_s = ev.stats.ttft_s;
            res->prefill_s += ev.stats.prefill_s;
        }
    }
    for (int i = 0; i < sessions; i++) session_close(&s[i]);
    mem_free(ids);
    return rc;
}

static void print_prefill_row(struct bench *b, int n, const struct bench_result *r) {
    struct buf line = {0};
    char speed[32];
    double rate = n / r->prefill_s, gflops = rate * (double)engine_token_flops(b->app->engine) / 1e9;
    double limit = n / ((double)engine_token_bytes(b->app->engine) / b->limit);
    if (b->json)
        buf_fmt(&line,
                "{\"what\": \"prefill\", \"prompt\": %d, \"sessions\": 1, \"tokens_per_s\": %.3f, \"ttft_s\": %.6f, "
                "\"gflops\": %.3f, \"limit\": %.3f, "
                "\"share\": %.4f}",
                n, rate, r->ttft_s, gflops, limit, rate / limit);
    else
        buf_fmt(&line,
                "prefill  %6d %s            %9s tok/s  %8.1f GFLOP/s  first token %.3f s  %.1f %% of the bandwidth "
                "limit",
                n, n == 1 ? "token " : "tokens", amount_rate(rate, speed, sizeof speed), gflops, r->ttft_s,
                100 * rate / limit);
    print_row(b, &line);
}

static void print_decode_row(struct bench *b, int prompt, int sessions, const struct bench_result *r) {
    struct buf line = {0};
    char speed[32], most[32];
    double rate = r->decode_s > 0 ? r->steps / r->decode_s : 0,
           limit = b->limit / (double)engine_token_bytes(b->app->engine);
    if (b->json)
        buf_fmt(&line,
                "{\"what\": \"decode\", \"prompt\": %d, \"sessions\": %d, \"tokens_per_s\": %.3f, \"tpot_s\": %.6f, "
                "\"gbps\": %.3f, \"limit\": %.3f, "
                "\"share\": %.4f}",
                prompt, sessions, rate, rate > 0 ? sessions / rate : 0,
                rate * (double)engine_token_bytes(b->app->engine) / 1e9, limit, rate / limit);
    else
        buf_fmt(&line, "decode   %6d %s before, %d session%s %7s tok/s  of %9s at memory bandwidth  %3.0f %%", prompt,
                prompt == 1 ? "token " : "tokens", sessions, sessions > 1 ? "s" : " ",
                amount_rate(rate, speed, sizeof speed), amount_rate(limit, most, sizeof most), 100 * rate / limit);
    print_row(b, &line);
}

/* Measures a run between two measurements of its limit: other processes slow down both. */
static int run_with_limit(struct bench *b, int sessions, int prompt, struct bench_result *r, struct error *e) {
    double before = b->bandwidth;
    int rc = run_sessions(b, sessions, prompt, DECODE_TOKENS, r, e);
    b->bandwidth = engine_read_bandwidth(b->app->engine, 3);
    b->limit = (before + b->bandwidth) / 2;
    return rc;
}

/* The figures that answer "how fast is it?". */
struct verdict {
    double answer, long_answer, prompt, chats; /* tokens/s; 0: not measured */
    double limit;                              /* tokens/s of answer at memory bandwidth */
    int tokens;                                /* length of the longest prompt */
};
static void print_verdict(const struct bench *b, const struct verdict *v) {
    char a[32], p[32], l[32];
    struct buf text = {0};
    const struct engine_info *i = engine_info(b->app->engine);
    buf_fmt(&text, "%s, %s, %s: answers run at %s tok/s", i->name, amount_count(i->threads, "thread", p, sizeof p),
            i->level, amount_rate(v->answer, a, sizeof a));
    if (v->tokens > 1)
        buf_fmt(&text, ", after %d tokens at %s tok/s;\nprompts of %d tokens are read at %s tok/s", v->tokens,
                amount_rate(v->long_answer, l, sizeof l), v->tokens, amount_rate(v->prompt, p, sizeof p));
    if (v->chats > 0) buf_fmt(&text, "; %d chats together: %s tok/s", MAX_SESSIONS, amount_rate(v->chats, a, sizeof a));
    buf_fmt(&text,
            ".\nMemory reads %.1f GB/s and a token reads %.1f MB of weights: at most %s tok/s, of which answers reach "
            "%.0f %%.\n",
            b->bandwidth / 1e9, (double)engine_token_bytes(b->app->engine) / 1e6, amount_rate(v->limit, a, sizeof a),
            100 * v->answer / v->limit);
    if (!text.failed) out_write(text.data, text.len);
    buf_free(&text);
}

static int bench_model(struct bench *b, struct error *e) {
    static const int prompts[] = {1, 16, 128, 512, 2048};
    struct app *a = b->app;
    struct bench_result r;
    struct verdict v = {0};
    int rc = open_find_model(a, e), context;
    if (rc || (rc = open_engine(a, e))) return rc;
    context = engine_info(a->engine)->context;
    progress_begin("measuring");
    b->bandwidth = engine_read_bandwidth(a->engine, 3);
    struct buf line = {0};
    char threads[32];
    const struct engine_info *i = engine_info(a->engine);
    if (b->json)
        buf_fmt(&line,
                "{\"what\": \"machine\", \"threads\": %d, \"level\": \"%s\", \"read_gbps\": %.3f, \"token_bytes\": "
                "%llu, \"token_flops\": %llu}",
                i->threads, i->level, b->bandwidth / 1e9, (unsigned long long)engine_token_bytes(a->engine),
                (unsigned long long)engine_token_flops(a->engine));
    else
        buf_fmt(&line, "%s, %s, %s: memory reads %.1f GB/s; a token reads %.1f MB of weights", i->name,
                amount_count(i->threads, "thread", threads, sizeof threads), i->level, b->bandwidth / 1e9,
                (double)engine_token_bytes(a->engine) / 1e6);
    print_row(b, &line);
    /* warms up: after some hundred tokens every expert was read */
    rc = run_sessions(b, 1, context > 600 ? 512 : 8, 4, &r, e);
    for (size_t k = 0;
         k < sizeof prompts / sizeof *prompts && !rc && !out_failed() && prompts[k] + DECODE_TOKENS <= context; k++) {
        if ((rc = run_with_limit(b, 1, prompts[k], &r, e))) break;
        if (prompts[k] > 1) print_prefill_row(b, prompts[k], &r);
        v.tokens = prompts[k], v.prompt = prompts[k] / r.prefill_s;
        v.long_answer = r.decode_s > 0 ? r.steps / r.decode_s : 0;
        if (prompts[k] <= 16) v.answer = v.long_answer, v.limit = b->limit / (double)engine_token_bytes(a->engine);
        print_decode_row(b, prompts[k], 1, &r);
    }
    for (int s = 2; s <= MAX_SESSIONS && !rc && !out_failed() && 16 + DECODE_TOKENS <= context; s *= 2) {
        if ((rc = run_with_limit(b, s, 16, &r, e))) break;
        print_decode_row(b, 16, s, &r);
        if (s == MAX_SESSIONS && r.decode_s > 0) v.chats = r.steps / r.decode_s;
    }
    progress_clear();
    if (!rc && !b->json && v.answer > 0) print_verdict(b, &v);
    return rc;
}

int bench_measure(struct app *a, int keys, int prompt, double *answer, double *read, struct error *e) {
    struct bench b = {.app = a};
    struct bench_result r;
    const int context = engine_info(a->engine)->context, warm = context > 600 ? 512 : 8;
    *answer = *read = 0;
    int rc = run_sessions(&b, 1, warm, DECODE_TOKENS, &r, e); /* every expert was read then */
    if (!rc && keys + DECODE_TOKENS <= context && !(rc = run_sessions(&b, 1, keys, DECODE_TOKENS, &r, e)))
        *answer = r.decode_s > 0 ? r.steps / r.decode_s : 0;
    if (!rc && prompt + 1 <= context && !(rc = run_sessions(&b, 1, prompt, 1, &r, e)))
        *read = r.prefill_s > 0 ? prompt / r.prefill_s : 0;
    return rc;
}

int bench_run(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct bench b = {.app = a, .json = v[OPT_JSON].on, .first = true};
    b.rows = b.json || v[OPT_VERBOSE].on || !strcmp(v[OPT_BENCH].text, "kernels");
    if (b.json) out_write("[", 1);
    int rc = !strcmp(v[OPT_BENCH].text, "kernels")
                 ? engine_bench_kernels(v[OPT_THREADS].text ? (int)v[OPT_THREADS].integer : 0, print_kernel_row, &b, e)
                 : bench_model(&b, e);
    if (b.json) out_write("]\n", 2);
    return rc;
}
