/* --batch: each line of a file is a prompt; the answers come as lines of JSON in the same order. A few sessions run at
 * once, so that their decoding shares what is read of the weights. */
#include "cli/batch.h"

#include <stdio.h>
#include <string.h>

#include "cli/conv.h"
#include "cli/input.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/sig.h"
#include "cli/turn.h"

enum { SLOTS = 6 };

struct job {
    const char *text; /* of the file */
    size_t n, number; /* number: of its line, from 1 */
    struct buf line;  /* the finished output */
    bool done, failed;
};
struct slot {
    struct seat *seat;
    struct turn turn;
    struct job *job;
};
struct batch {
    struct app *app;
    struct buf file;
    struct job *jobs;
    size_t n, cap, next, printed; /* next to start; next to print */
    struct slot slots[SLOTS];
};

static void job_begin(const struct batch *b, struct job *j, const struct json *id) {
    buf_fmt(&j->line, "{\"index\": %zu, ", (size_t)(j - b->jobs));
    if (!id) return;
    buf_str(&j->line, "\"id\": ");
    if (id->type == JSON_STRING) out_json_string(&j->line, id->string, id->n);
    else if (id->type == JSON_INT) buf_fmt(&j->line, "%lld", (long long)id->integer);
    else buf_str(&j->line, "null");
    buf_str(&j->line, ", ");
}

/* Each line is a text of its own to the parser, which therefore counts from 1 in it. */
static void name_line(const struct job *j, struct error *e) {
    char text[sizeof e->text];
    const char *within = strstr(e->text, ", column ");
    snprintf(text, sizeof text, "%s", within ? within : e->text);
    error_set(e, e->code, within ? "line %zu%s" : "line %zu: %s", j->number, text);
}

static void job_fail(struct job *j, const struct error *e) {
    buf_fmt(&j->line, "\"error\": {\"code\": %d, \"message\": ", error_exit_code(e->code));
    out_json_string(&j->line, e->text, strlen(e->text));
    buf_str(&j->line, "}}\n");
    j->done = j->failed = true;
}

/* A string, {"prompt": ...} with an optional "system", or {"messages": [...]} with any template variables. */
static int make_prompt(struct batch *b, const struct json *line, struct prompt *p, struct error *e) {
    struct app *a = b->app;
    const struct json *text = line->type == JSON_STRING ? line : json_get(line, "prompt"), *system = json_get(line, "system");
    const char *own = a->opts.v[OPT_SYSTEM].text;
    struct conv c = {0};
    if (json_get(line, "messages")) {
        if (!a->chat) return error_set(e, ERR_USAGE, "messages need a chat template, and --raw has none");
        struct arena arena = {0};
        struct json *copy = arena_alloc(&arena, (2 * (size_t)line->n + 2) * sizeof *copy);
        if (!copy) return error_set(e, ERR_MEMORY, "no memory");
        struct json conv = *line;
        if (!json_get(line, "add_generation_prompt")) {
            memcpy(copy, line->items, 2 * (size_t)line->n * sizeof *copy);
            copy[2 * line->n] = (struct json){.type = JSON_STRING, .n = 21, .string = "add_generation_prompt"};
            copy[2 * line->n + 1] = (struct json){.type = JSON_BOOL, .boolean = true};
            conv.items = copy;
            conv.n++;
        }
        int rc = conv_prompt_json(a, &conv, p, e);
        arena_free(&arena);
        return rc;
    }
    if (!text || text->type != JSON_STRING || !text->n) return error_set(e, ERR_USAGE, "neither a string nor an object with prompt or messages");
    if (!a->chat) return conv_prompt_raw(a, text->string, text->n, p, e);
    int rc = 0;
    if (system && system->type == JSON_STRING) rc = conv_add(&c, ROLE_SYSTEM, system->string, system->n, NULL, 0);
    else if (own) rc = conv_add(&c, ROLE_SYSTEM, own, strlen(own), NULL, 0);
    if (rc || conv_add(&c, ROLE_USER, text->string, text->n, NULL, 0)) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = conv_prompt(a, &c, conv_think(&a->opts), p, e);
    conv_free(&c);
    return rc;
}

static void start(struct batch *b, struct slot *s, struct job *j) {
    struct arena arena = {0};
    struct json line;
    struct prompt p = {0};
    struct error e;
    const struct opt_value *v = b->app->opts.v;
    struct request q = {.max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1};
    app_sampling(b->app, &b->app->opts, &q.sampling);
    int rc = json_parse(&arena, j->text, j->n, 0, "line", &line, &e);
    if (rc == ERR_MODEL) rc = e.code = ERR_USAGE;
    job_begin(b, j, rc ? NULL : json_get(&line, "id"));
    if (!rc) {
        int64_t max = json_int(json_get(&line, "max_tokens"), q.max_tokens), seed = json_int(json_get(&line, "seed"), -1);
        double temp = json_num(json_get(&line, "temperature"), q.sampling.temperature);
        if (max < -1 || !max || max > 16777216) rc = error_set(&e, ERR_USAGE, "max_tokens %lld is out of range", (long long)max);
        else if (!(temp >= 0 && temp <= 100)) rc = error_set(&e, ERR_USAGE, "temperature %g is out of range", temp);
        q.max_tokens = (int)max;
        q.sampling.temperature = (float)temp;
        if (seed >= 0) q.sampling.seed = (uint64_t)seed;
    }
    if (!rc) rc = make_prompt(b, &line, &p, &e);
    if (!rc && !s->seat) rc = seat_open(b->app, &s->seat, &e);
    if (!rc) rc = turn_start(&s->turn, b->app, s->seat, &p, &q, NULL, NULL, &e);
    if (rc) {
        name_line(j, &e);
        job_fail(j, &e);
    } else s->job = j;
    prompt_free(&p);
    arena_free(&arena);
}

static void finish(struct slot *s) {
    struct job *j = s->job;
    if (s->turn.failed) job_fail(j, &s->turn.error);
    else {
        turn_json_answer(&s->turn, &j->line);
        buf_str(&j->line, "}\n");
        j->done = true;
    }
    turn_free(&s->turn);
    s->job = NULL;
}

static void print_done(struct batch *b) {
    for (; b->printed < b->n && b->jobs[b->printed].done; b->printed++) {
        struct buf *line = &b->jobs[b->printed].line;
        out_write(line->data, line->failed ? 0 : line->len);
        buf_free(line);
    }
}

static void run(struct batch *b) {
    struct news news;
    bool cancelled = false;
    progress_begin("batch");
    while (b->printed < b->n) {
        bool stop = sig_interrupted() || sig_terminated() || out_failed(), running = false;
        for (int i = 0; i < SLOTS; i++) {
            while (!stop && !b->slots[i].job && b->next < b->n) start(b, &b->slots[i], &b->jobs[b->next++]);
            if (stop && !cancelled && b->slots[i].job) seat_cancel(b->slots[i].seat);
            running |= b->slots[i].job != NULL;
        }
        cancelled |= stop;
        print_done(b);
        if (!running) break;
        if (!seat_poll(b->app, &news, 100)) continue;
        for (int i = 0; i < SLOTS; i++) {
            struct slot *s = &b->slots[i];
            if (!s->job || s->seat != news.seat) continue;
            turn_event(&s->turn, &news);
            if (!s->turn.running) finish(s);
        }
        progress_update("batch", (double)b->printed / (double)b->n, -1);
    }
    progress_clear();
    print_done(b);
}

static int split(struct batch *b, struct error *e) {
    const char *s = b->file.data ? b->file.data : "", *end = s + b->file.len;
    for (size_t number = 1; s < end; number++) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((nl ? nl : end) - s), blank = 0;
        while (blank < n && strchr(" \t\r", s[blank])) blank++;
        if (blank < n) {
            if (mem_grow(&b->jobs, &b->cap, b->n + 1, sizeof *b->jobs)) return error_set(e, ERR_MEMORY, "no memory");
            b->jobs[b->n++] = (struct job){.text = s, .n = n, .number = number};
        }
        s += n + 1;
    }
    return b->n ? 0 : error_set(e, ERR_USAGE, "--batch: %s holds no prompts", b->app->opts.v[OPT_BATCH].text);
}

int batch_run(struct app *a, struct error *e) {
    struct batch *b = mem_calloc(1, sizeof *b);
    size_t failed = 0;
    if (!b) return error_set(e, ERR_MEMORY, "no memory");
    b->app = a;
    int rc = input_file(a->opts.v[OPT_BATCH].text, &b->file, e);
    if (!rc) rc = split(b, e);
    if (!rc) rc = app_open_text(a, e);
    if (!rc) rc = app_open_engine(a, e);
    if (!rc) {
        sig_hold(NULL);
        run(b);
    }
    for (int i = 0; i < SLOTS; i++) {
        turn_free(&b->slots[i].turn);
        seat_close(&b->slots[i].seat);
    }
    for (size_t i = 0; i < b->n; i++) {
        failed += b->jobs[i].failed;
        buf_free(&b->jobs[i].line);
    }
    if (!rc && failed) rc = error_set(e, ERR_RUNTIME, "%zu of %zu prompts failed; their lines say why", failed, b->n);
    mem_free(b->jobs);
    buf_free(&b->file);
    mem_free(b);
    return rc;
}
