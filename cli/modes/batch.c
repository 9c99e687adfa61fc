/* --batch: each line of a file is a prompt; each answer is a line of JSON, written when it is complete. Several
 * sessions decode together, so that they share weight reads. The longest prompts go first, so that none runs alone at
 * the end. When the output is appended to (>>), its lines tell which prompts an earlier run answered, with a hash of
 * the prompt, the model and the settings; these are skipped. */
#include "cli/modes/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/utf8.h"
#include "cli/open.h"
#include "cli/options/trim.h"
#include "cli/report.h"
#include "cli/saved/store_model.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/turn/conversation.h"
#include "cli/turn/input.h"
#include "cli/turn/turn.h"

enum { DEFAULT_SESSIONS = 12 }; /* without --parallel, when the engine gives no number */
enum {
    BYTES_PER_TOKEN = 4,        /* of a prompt, about */
    TEMPLATE_TOKENS = 16,       /* that a chat template adds to a prompt, about */
    DEFAULT_ANSWER_TOKENS = 256 /* expected without -n */
};
enum { HASH_BYTES = 17 }; /* of a hash as text, with its NUL */

struct batch_job {
    const char *text;      /* in the file */
    size_t n, line_number; /* line number, from 1 */
    struct buf line;       /* the finished output */
    bool failed;
};
struct past_answer {
    char *key; /* its hash, and its id or else its index */
    long long index;
    bool matched; /* with an input line */
};
struct batch_session {
    struct engine_client *client;
    struct turn turn;
    struct batch_job *job;
};
struct batch {
    struct app *app;
    struct buf file;
    struct batch_job *jobs;
    size_t n_jobs, n_order, cap_jobs, next_job; /* next_job: index in order of the next one to start */
    struct batch_job **order;                   /* [n_order] jobs that the output lacks, longest first */
    size_t prompt_bytes, bytes_done, n_failed;
    struct batch_session *sessions;
    int n_sessions;
    uint64_t settings;        /* hash of what else decides an answer: the model and options */
    struct past_answer *past; /* [n_past] lines that the output already has, sorted */
    size_t n_past, cap_past;
    bool plain; /* each line is a prompt in plain text, not JSON */
};

static uint64_t hash_option(const struct opt_value *v, uint64_t hash) {
    const char *text = v->text ? v->text : "";
    hash = hash64(text, strlen(text) + 1, hash + v->on);
    for (size_t k = 0; k < v->n_items; k++) hash = hash64(v->items[k], strlen(v->items[k]) + 1, hash);
    return hash;
}
/* Hashes what decides the answers besides their lines: the model and the options that an answer depends on. A larger
 * context only lets prompts fit that did not. */
static uint64_t hash_settings(const struct app *a) {
    /* OPT_MAX_TOKENS to OPT_TEMPLATE_VAR: how an answer is drawn, where it ends, and how the model thinks */
    static const enum opt_id ranges[][2] = {{OPT_RAW, OPT_RAW},
                                            {OPT_SPECIAL, OPT_SPECIAL},
                                            {OPT_SYSTEM, OPT_SYSTEM},
                                            {OPT_MAX_TOKENS, OPT_TEMPLATE_VAR},
                                            {OPT_KV, OPT_KV}};
    const bool own_template = a->template && a->opts.v[OPT_TEMPLATE].text;
    char place[PATHS_MAX];
    store_model_place(a, place);
    uint64_t hash = hash64(place, strlen(place), own_template ? chat_template_hash(a->template) : 0);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (int id = ranges[i][0]; id <= (int)ranges[i][1]; id++) hash = hash_option(&a->opts.v[id], hash);
    const struct grammar_source *grammar = constraint_of_options(a);
    return grammar ? hash64(grammar->text, grammar->n, hash + (uint64_t)grammar->kind + 1) : hash;
}

/* Formats the hash of a prompt, the model and the settings. */
static void job_hash(const struct batch *b, const struct batch_job *j, char out[HASH_BYTES]) {
    snprintf(out, HASH_BYTES, "%016llx",
             (unsigned long long)hash64(j->text, trim_end(j->text, j->n, " \t\r"), b->settings));
}

static void job_begin(const struct batch *b, struct batch_job *j, const struct json *id) {
    char hash[HASH_BYTES];
    job_hash(b, j, hash);
    buf_fmt(&j->line, "{\"index\": %zu, \"line\": %zu, \"hash\": \"%s\", ", (size_t)(j - b->jobs), j->line_number,
            hash);
    if (!id) return;
    buf_str(&j->line, "\"id\": ");
    if (id->type == JSON_STRING) out_json_string(&j->line, id->string, id->n);
    else if (id->type == JSON_INT) buf_fmt(&j->line, "%lld", (long long)id->integer);
    else buf_str(&j->line, "null");
    buf_str(&j->line, ", ");
}

/* Prefixes an error with the line number. The parser saw the line as a text of its own, so its own line number is
 * dropped. */
static void prefix_line_number(const struct batch_job *j, struct error *e) {
    char text[sizeof e->text];
    const char *within = strstr(e->text, ", column ");
    snprintf(text, sizeof text, "%s", within ? within : e->text);
    error_set(e, e->code, within ? "line %zu%s" : "line %zu: %s", j->line_number, text);
}

static void job_fail(struct batch_job *j, const struct error *e) {
    buf_fmt(&j->line, "\"error\": {\"code\": %d, \"message\": ", error_exit_code(e->code));
    out_json_string(&j->line, e->text, strlen(e->text));
    buf_str(&j->line, "}}\n");
    j->failed = true;
}

/* Writes each line with one call, so that a killed run leaves complete lines, except possibly the last. */
static void job_write(struct batch *b, struct batch_job *j) {
    out_write(j->line.data, j->line.failed ? 0 : j->line.len);
    buf_free(&j->line);
    b->n_failed += j->failed;
    b->bytes_done += j->n;
}

/* Returns a member of a line, or NULL for null too. */
static const struct json *line_member(const struct json *line, const char *name) {
    const struct json *j = json_get(line, name);
    return j && j->type != JSON_NULL ? j : NULL;
}

/* Refuses members of the wrong type, which would otherwise be ignored. */
static int check_line(const struct json *line, struct error *e) {
    static const char *const texts[] = {"prompt", "system"}, *const numbers[] = {"max_tokens", "seed"};
    const struct json *messages = line_member(line, "messages"), *j;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if ((j = line_member(line, texts[i])) && j->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "%s must be a string", texts[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((j = line_member(line, numbers[i])) && json_int(j, 0) != json_int(j, 1))
            return error_set(e, ERR_USAGE, "%s must be a whole number", numbers[i]);
    if ((j = line_member(line, "id")) && j->type != JSON_STRING && j->type != JSON_INT)
        return error_set(e, ERR_USAGE, "id must be a string or a whole number");
    if (!messages) return 0;
    if (messages->type != JSON_ARRAY || !messages->n)
        return error_set(e, ERR_USAGE, "messages must be an array with at least one message");
    for (uint32_t i = 0; i < messages->n; i++)
        if (!(j = json_get(&messages->items[i], "role")) || j->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "messages[%u] must be an object with a role", i);
    return 0;
}

/* Accepts a string, {"prompt": ...} with an optional "system", or {"messages": [...]} with any template variables. */
static int make_job_prompt(struct batch *b, const struct json *line, struct prompt *p, struct error *e) {
    struct app *a = b->app;
    const struct json *text = line->type == JSON_STRING ? line : json_get(line, "prompt"),
                      *system = json_get(line, "system");
    const char *option = a->opts.v[OPT_SYSTEM].text;
    struct conversation c = {0};
    if (line_member(line, "messages")) {
        if (a->opts.v[OPT_RAW].on)
            return error_set(e, ERR_USAGE, "messages cannot be combined with --raw: they need a chat template");
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
        int rc = prompt_from_json(a, &conv, p, e);
        arena_free(&arena);
        return rc;
    }
    if (!text || text->type != JSON_STRING || !text->n)
        return error_set(e, ERR_USAGE, "must be a string, or an object with prompt or messages");
    if (a->opts.v[OPT_RAW].on) return prompt_from_raw(a, text->string, text->n, a->opts.v[OPT_SPECIAL].on, p, e);
    int rc = 0;
    if (system && system->type == JSON_STRING)
        rc = conversation_add(&c, ROLE_SYSTEM, system->string, system->n, NULL, 0);
    else if (option) rc = conversation_add(&c, ROLE_SYSTEM, option, strlen(option), NULL, 0);
    if (rc || conversation_add(&c, ROLE_USER, text->string, text->n, NULL, 0))
        rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = prompt_make(a, &c, prompt_think_option(&a->opts), p, e);
    conversation_free(&c);
    return rc;
}

static void start_job(struct batch *b, struct batch_session *s, struct batch_job *j) {
    struct arena arena = {0};
    struct json line;
    struct prompt p = {0};
    struct error e;
    const struct opt_value *v = b->app->opts.v;
    /* An answer must not depend on those that were computed before it in its session. */
    struct request q = {.flags = REQ_EXACT_PREFIX_ONLY,
                        .max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1};
    open_sampling(b->app, &b->app->opts, &q.sampling);
    int rc = b->plain ? 0 : json_parse(&arena, j->text, j->n, 0, "line", &line, &e);
    if (b->plain)
        line = (struct json){.type = JSON_STRING, .string = j->text, .n = (uint32_t)trim_end(j->text, j->n, "\r")};
    if (rc == ERR_MODEL) rc = e.code = ERR_USAGE;
    job_begin(b, j, rc ? NULL : json_get(&line, "id"));
    if (!rc) {
        int64_t max = json_int(json_get(&line, "max_tokens"), q.max_tokens),
                seed = json_int(json_get(&line, "seed"), -1);
        const struct json *given = json_get(&line, "temperature");
        if (given && given->type == JSON_NULL) given = NULL;
        double temp = json_num(given, given ? -1 : (double)q.sampling.temperature);
        if (max < -1 || !max || max > 16777216)
            rc = error_set(&e, ERR_USAGE, "max_tokens %lld is out of range", (long long)max);
        else if (given && !(temp >= 0 && temp <= 100))
            rc = error_set(&e, ERR_USAGE, "temperature %g is out of range", temp);
        q.max_tokens = (int)max;
        q.sampling.temperature = (float)temp;
        if (seed >= 0) q.sampling.seed = (uint64_t)seed;
    }
    if (!rc) rc = check_line(&line, &e);
    if (!rc) rc = make_job_prompt(b, &line, &p, &e);
    if (!rc) rc = prompt_check_refusal(&p, &e);
    p.source = constraint_of_options(b->app);
    if (!rc && !s->client) rc = engine_client_open(b->app, &s->client, &e);
    if (!rc) rc = turn_start(&s->turn, b->app, s->client, &p, &q, NULL, NULL, &e);
    if (rc) {
        prefix_line_number(j, &e);
        job_fail(j, &e);
        job_write(b, j);
    } else s->job = j;
    prompt_free(&p);
    arena_free(&arena);
}

/* Writes the answer's line. A cancelled job gets none, so that the next run answers it. */
static void finish_job(struct batch *b, struct batch_session *s) {
    struct batch_job *j = s->job;
    if (s->turn.failed) job_fail(j, &s->turn.error);
    else {
        turn_json_answer(&s->turn, &j->line);
        buf_str(&j->line, "}\n");
    }
    if (s->turn.failed || s->turn.reason != DONE_CANCELLED) job_write(b, j);
    turn_free(&s->turn);
    s->job = NULL;
}

static void run_jobs(struct batch *b, bool announced) {
    struct engine_event news;
    bool cancelled = false;
    progress_begin("batch");
    for (;;) {
        bool is_stopped = sig_interrupted() || sig_terminated() || out_failed(), is_running = false;
        for (int i = 0; i < b->n_sessions; i++) {
            while (!is_stopped && !b->sessions[i].job && b->next_job < b->n_order)
                start_job(b, &b->sessions[i], b->order[b->next_job++]);
            if (is_stopped && !cancelled && b->sessions[i].job) engine_client_cancel(b->sessions[i].client);
            is_running |= b->sessions[i].job != NULL;
        }
        cancelled |= is_stopped;
        if (announced) engine_announce(b->app->engine, NULL), announced = false;
        if (!is_running) break;
        if (!engine_client_poll(b->app, &news, 100)) continue;
        for (int i = 0; i < b->n_sessions; i++) {
            struct batch_session *s = &b->sessions[i];
            if (!s->job || s->client != news.client) continue;
            turn_event(&s->turn, &news);
            if (!s->turn.running) finish_job(b, s);
        }
        progress_update("batch", (double)b->bytes_done / (double)b->prompt_bytes, -1);
    }
    progress_clear();
}

/* --- the output of an earlier run ------------------------------------------------------------- */

static int compare_past(const void *a, const void *b) {
    const struct past_answer *x = a, *y = b;
    int by_key = strcmp(x->key, y->key);
    return by_key ? by_key : (x->index > y->index) - (x->index < y->index);
}

/* Returns the key of an input or output line: its hash, and its id or else its index. NULL: no memory. */
static char *make_key(const char *hash, size_t n, const struct json *id, long long index) {
    struct buf b = {0};
    buf_add(&b, hash, n);
    if (id && (id->type == JSON_STRING || id->type == JSON_INT)) json_write(&b, id);
    else buf_fmt(&b, "#%lld", index);
    if (!b.failed) return b.data;
    buf_free(&b);
    return NULL;
}

static int add_past_answer(struct batch *b, const char *s, size_t n) {
    struct arena arena = {0};
    struct json j;
    int rc = 0;
    if (!json_parse(&arena, s, n, 0, "line", &j, NULL) && json_get(&j, "index") && !json_get(&j, "error")) {
        long long index = json_int(json_get(&j, "index"), -1);
        const struct json *hash = json_get(&j, "hash");
        const bool is_text = hash && hash->type == JSON_STRING;
        char *key = make_key(is_text ? hash->string : "", is_text ? hash->n : 0, json_get(&j, "id"), index);
        if (!key || mem_grow(&b->past, &b->cap_past, b->n_past + 1, sizeof *b->past)) {
            mem_free(key);
            rc = ERR_MEMORY;
        } else b->past[b->n_past++] = (struct past_answer){.key = key, .index = index};
    }
    arena_free(&arena);
    return rc;
}

/* Reads stdout's answers if it is a file opened for appending. Truncates an unfinished last line of a killed run. */
static int read_past_output(struct batch *b, struct error *e) {
    static const char ours[] = "{\"index\": ";
    struct stat st;
    char *data;
    size_t n, at = 0;
    if (fstat(1, &st) || !S_ISREG(st.st_mode) || !st.st_size || !(fcntl(1, F_GETFL) & O_APPEND)) return 0;
    int rc = file_read("/proc/self/fd/1", (size_t)4 << 30, &data, &n, e);
    if (rc) return rc;
    for (char *nl; !rc && (nl = memchr(data + at, '\n', n - at)); at = (size_t)(nl - data) + 1)
        rc = add_past_answer(b, data + at, (size_t)(nl - data) - at);
    if (rc) error_set(e, rc, "no memory");
    else if (at < n && !strncmp(data + at, ours, n - at < sizeof ours - 1 ? n - at : sizeof ours - 1) &&
             ftruncate(1, (off_t)at))
        rc = error_set(e, ERR_RUNTIME, "--batch: cannot remove the unfinished last line of the output: %s",
                       strerror(errno));
    mem_free(data);
    if (b->n_past) qsort(b->past, b->n_past, sizeof *b->past, compare_past);
    return rc;
}

/* Looks for an unmatched answer with an input line's key and index (any_index: with its key) and matches it. Returns
 * whether there is one. */
static bool match_past(struct batch *b, const char *key, long long index, bool any_index) {
    const struct past_answer wanted = {.key = (char *)key, .index = any_index ? LLONG_MIN : index};
    size_t lo = 0, hi = b->n_past;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (compare_past(&b->past[mid], &wanted) < 0) lo = mid + 1;
        else hi = mid;
    }
    while (lo < b->n_past && b->past[lo].matched && !strcmp(b->past[lo].key, key)) lo++;
    if (lo == b->n_past || strcmp(b->past[lo].key, key) || (!any_index && b->past[lo].index != index)) return false;
    return b->past[lo].matched = true;
}

static int compare_longest_first(const void *a, const void *b) {
    const struct batch_job *x = *(struct batch_job *const *)a, *y = *(struct batch_job *const *)b;
    return x->n != y->n ? (x->n < y->n) - (x->n > y->n) : (x > y) - (x < y);
}

/* Returns an input line's key; NULL: no memory. */
static char *job_key(const struct batch *b, size_t i) {
    struct arena arena = {0};
    struct json line;
    char hash[HASH_BYTES];
    job_hash(b, &b->jobs[i], hash);
    const bool parsed = !b->plain && !json_parse(&arena, b->jobs[i].text, b->jobs[i].n, 0, "line", &line, NULL);
    char *key = make_key(hash, strlen(hash), parsed ? json_get(&line, "id") : NULL, (long long)i);
    arena_free(&arena);
    return key;
}

/* Finds the prompts that the output has answers to. Where several have the same id, each first gets the answer with its
 * index. */
static int find_answered(struct batch *b, bool *answered, struct error *e) {
    int rc = 0;
    for (int any_index = 0; any_index < 2 && b->n_past && !rc; any_index++)
        for (size_t i = 0; i < b->n_jobs && !rc; i++) {
            char *key = answered[i] ? NULL : job_key(b, i);
            if (key) answered[i] = match_past(b, key, (long long)i, any_index);
            else if (!answered[i]) rc = error_set(e, ERR_MEMORY, "no memory");
            mem_free(key);
        }
    return rc;
}

/* Orders the remaining prompts, longest first, by bytes. */
static int order_jobs(struct batch *b, struct error *e) {
    int rc = read_past_output(b, e);
    if (rc) return rc;
    bool *answered = mem_calloc(b->n_jobs, sizeof *answered);
    b->order = mem_calloc(b->n_jobs, sizeof *b->order);
    rc = answered && b->order ? find_answered(b, answered, e) : error_set(e, ERR_MEMORY, "no memory");
    b->n_order = 0;
    for (size_t i = 0; i < b->n_jobs && !rc; i++)
        if (!answered[i]) b->order[b->n_order++] = &b->jobs[i], b->prompt_bytes += b->jobs[i].n;
    mem_free(answered);
    if (rc) return rc;
    qsort(b->order, b->n_order, sizeof *b->order, compare_longest_first);
    if (b->n_order < b->n_jobs)
        report_note("%zu of %zu prompts are already in the output and are skipped", b->n_jobs - b->n_order, b->n_jobs);
    if (b->n_past + b->n_order > b->n_jobs)
        report_note("of the lines in the output, %zu have another hash: they answer other prompts, or are of another "
                    "model or other settings; they stay",
                    b->n_past + b->n_order - b->n_jobs);
    return 0;
}

static int split_lines(struct batch *b, struct error *e) {
    const char *s = b->file.data ? b->file.data : "", *end = s + b->file.len;
    s += utf8_mark(s, b->file.len);
    for (size_t number = 1; s < end; number++) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((nl ? nl : end) - s), blank = 0;
        while (blank < n && strchr(" \t\r", s[blank])) blank++;
        if (blank < n) {
            if (mem_grow(&b->jobs, &b->cap_jobs, b->n_order + 1, sizeof *b->jobs))
                return error_set(e, ERR_MEMORY, "no memory");
            if (!b->n_order) b->plain = s[blank] != '{' && s[blank] != '"';
            b->jobs[b->n_order++] = (struct batch_job){.text = s, .n = n, .line_number = number};
        }
        s += n + 1;
    }
    b->n_jobs = b->n_order;
    return b->n_order ? 0 : error_set(e, ERR_USAGE, "--batch: no prompts in %s", b->app->opts.v[OPT_BATCH].text);
}

/* Announces the batch to the engine and sets the number of sessions. True: the engine waits until all prompts are
 * submitted. */
static bool announce_load(struct batch *b) {
    const struct opt_value *v = b->app->opts.v;
    struct announced_load load = {.n_prompts = (int)b->n_order,
                                  .prompt_tokens =
                                      TEMPLATE_TOKENS + (double)b->prompt_bytes / (double)b->n_order / BYTES_PER_TOKEN,
                                  .answer_tokens = DEFAULT_ANSWER_TOKENS};
    b->n_sessions = v[OPT_PARALLEL].text ? (int)v[OPT_PARALLEL].integer : DEFAULT_SESSIONS;
    if (v[OPT_PARALLEL].text) load.max_at_once = b->n_sessions;
    if (v[OPT_MAX_TOKENS].text && v[OPT_MAX_TOKENS].integer > 0) load.answer_tokens = (double)v[OPT_MAX_TOKENS].integer;
    int n = b->app->engine ? engine_announce(b->app->engine, &load) : 0;
    if (n) b->n_sessions = n;
    return n;
}

static void batch_free(struct batch *b) {
    for (int i = 0; i < b->n_sessions; i++) {
        turn_free(&b->sessions[i].turn);
        engine_client_close(&b->sessions[i].client);
    }
    for (size_t i = 0; i < b->n_jobs; i++) buf_free(&b->jobs[i].line);
    for (size_t i = 0; i < b->n_past; i++) mem_free(b->past[i].key);
    mem_free(b->past);
    mem_free(b->order);
    mem_free(b->sessions);
    mem_free(b->jobs);
    buf_free(&b->file);
    mem_free(b);
}

int batch_run(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct batch *b = mem_calloc(1, sizeof *b);
    char count[32];
    if (!b) return error_set(e, ERR_MEMORY, "no memory");
    b->app = a;
    int rc = input_file(v[OPT_BATCH].text, &b->file, e);
    if (!rc) rc = split_lines(b, e);
    if (!rc) rc = open_text(a, e);
    if (!rc) b->settings = hash_settings(a);
    if (!rc) rc = order_jobs(b, e);
    if (!rc && b->n_order) {
        rc = open_engine(a, e);
        bool announced = !rc && announce_load(b);
        if (!rc && !(b->sessions = mem_calloc((size_t)b->n_sessions, sizeof *b->sessions)))
            rc = error_set(e, ERR_MEMORY, "no memory");
        if (!b->sessions) b->n_sessions = 0;
        if (!rc) {
            sig_defer(NULL, NULL);
            run_jobs(b, announced);
        }
    }
    if (!rc && b->n_failed)
        rc = error_set(e, ERR_RUNTIME, "%zu of %s failed; the output says why", b->n_failed,
                       amount_count((long long)b->n_order, "prompt", count, sizeof count));
    batch_free(b);
    return rc;
}
