#include "cli/modes/inspect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/modes/verdict.h"
#include "cli/open.h"
#include "cli/options/paths.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/turn/engine_client_local.h"
#include "cli/turn/gpus.h"
#include "cli/turn/input.h"
#include "cli/turn/prompt_images.h"

static int write_buf(struct buf *b, struct error *e) {
    int rc = b->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
    if (!rc && b->len) out_write(b->data, b->len);
    buf_free(b);
    return rc;
}

static int write_ids(const int32_t *ids, size_t n, struct error *e) {
    struct buf b = {0};
    buf_char(&b, '[');
    for (size_t i = 0; i < n; i++) buf_fmt(&b, "%s%d", i ? ", " : "", ids[i]);
    buf_str(&b, "]\n");
    return write_buf(&b, e);
}

/* --- checkpoint ------------------------------------------------------------------------------- */

static void put_value(struct buf *out, const struct json *j, int indent, bool bytes);

static void put_member(struct buf *out, const struct json *key, const struct json *v, int indent) {
    bool bytes = key->n >= 5 && !memcmp(key->string + key->n - 5, "bytes", 5);
    size_t from = out->len;
    for (int i = 0; i < indent; i++) buf_char(out, ' ');
    for (uint32_t i = 0; i < key->n; i++) buf_char(out, key->string[i] == '_' ? ' ' : key->string[i]);
    if (v->type == JSON_OBJECT) {
        buf_char(out, '\n');
        for (uint32_t i = 0; i < v->n; i++) put_member(out, &v->items[2 * i], &v->items[2 * i + 1], indent + 2);
        return;
    }
    do buf_char(out, ' ');
    while (out->len - from < 26 && !out->failed);
    put_value(out, v, indent, bytes);
    buf_char(out, '\n');
}

static void put_value(struct buf *out, const struct json *j, int indent, bool bytes) {
    char text[32];
    switch (j->type) {
    case JSON_NULL: buf_str(out, "none"); break;
    case JSON_BOOL: buf_str(out, j->boolean ? "yes" : "no"); break;
    case JSON_INT:
        buf_fmt(out, "%lld", (long long)j->integer);
        if (bytes && j->integer >= 1000) buf_fmt(out, " (%s)", amount_bytes((uint64_t)j->integer, text, sizeof text));
        break;
    case JSON_FLOAT: buf_fmt(out, "%g", json_num(j, 0)); break;
    case JSON_STRING: buf_add(out, j->string, j->n); break;
    case JSON_ARRAY:
        for (uint32_t i = 0; i < j->n; i++) {
            const struct json *it = &j->items[i];
            if (it->type != JSON_OBJECT) {
                if (i) buf_str(out, ", ");
                put_value(out, it, indent, bytes);
                continue;
            }
            for (uint32_t k = 0; k < it->n; k++) {
                buf_str(out, k ? ", " : "\n");
                for (int s = 0; !k && s < indent + 2; s++) buf_char(out, ' ');
                buf_add(out, it->items[2 * k].string, it->items[2 * k].n);
                buf_char(out, ' ');
                put_value(out, &it->items[2 * k + 1], indent, false);
            }
        }
        break;
    case JSON_OBJECT: break; /* written by put_member */
    }
}

int inspect_model(struct app *a, struct error *e) {
    struct engine_params p;
    struct buf json = {0}, text = {0};
    int rc = open_find_model(a, e);
    engine_client_local_params(a, &p);
    if (!p.gpus) p.gpus = gpus_by_default(a);
    char usage[PATHS_MAX];
    if (p.gpus && !paths_make(PATHS_CACHE, "usage", usage, sizeof usage, &(struct error){0})) p.usage_dir = usage;
    char tuned_dir[PATHS_MAX], machine[MACHINE_LINE];
    gpus_set_tuned(&p, tuned_dir, machine, sizeof machine);
    if (!rc) rc = engine_inspect(&p, &json, e);
    if (rc || a->opts.v[OPT_JSON].on) {
        if (!rc) buf_char(&json, '\n');
        if (!rc) rc = write_buf(&json, e);
        buf_free(&json);
        return rc;
    }
    struct arena arena = {0};
    struct json root;
    if (!(rc = json_parse(&arena, json.data, json.len, 0, "inspection", &root, e))) {
        verdict_put(&text, &root);
        if (a->opts.v[OPT_VERBOSE].on) buf_char(&text, '\n');
        for (uint32_t i = 0; i < root.n && a->opts.v[OPT_VERBOSE].on; i++)
            put_member(&text, &root.items[2 * i], &root.items[2 * i + 1], 0);
    }
    if (!rc) rc = write_buf(&text, e);
    arena_free(&arena);
    buf_free(&json);
    buf_free(&text);
    return rc;
}

int inspect_verify(struct app *a, struct error *e) {
    struct engine_params p;
    int rc = open_find_model(a, e);
    engine_client_local_params(a, &p);
    progress_begin("verifying");
    if (!rc) rc = engine_verify(&p, e);
    progress_clear();
    if (!rc) {
        const char *ok = a->opts.v[OPT_JSON].on ? "{\"ok\": true}\n" : "ok\n";
        out_write(ok, strlen(ok));
    }
    return rc;
}

/* --- text ------------------------------------------------------------------------------------- */

int inspect_tokenize(struct app *a, struct error *e) {
    struct buf text = {0};
    struct ids ids = {0};
    int rc = open_find_model(a, e);
    if (rc || (rc = engine_client_local_tokenizer(a, e))) return rc;
    if (!(rc = input_stdin(&text, e)))
        rc = tokenizer_encode(a->tokenizer, text.data ? text.data : "", text.len,
                              a->opts.v[OPT_SPECIAL].on ? TEXT_TEMPLATE : TEXT_VALUE, &ids, e);
    if (!rc) rc = write_ids(ids.data, ids.n, e);
    ids_free(&ids);
    buf_free(&text);
    return rc;
}

int inspect_detokenize(struct app *a, struct error *e) {
    struct buf text = {0}, bytes = {0};
    struct arena arena = {0};
    struct json list;
    int rc = open_find_model(a, e);
    if (rc || (rc = engine_client_local_tokenizer(a, e))) return rc;
    if ((rc = input_stdin(&text, e)) ||
        (rc = json_parse(&arena, text.data ? text.data : "", text.len, 0, "stdin", &list, e))) {
        if (rc == ERR_MODEL) rc = e->code = ERR_RUNTIME; /* the input is bad, not the model */
        goto out;
    }
    if (list.type != JSON_ARRAY) {
        rc = error_set(e, ERR_RUNTIME, "stdin: not a JSON array of ids");
        goto out;
    }
    struct decoder d = {.t = a->tokenizer};
    int vocab = tokenizer_n_ids(a->tokenizer);
    for (uint32_t i = 0; i < list.n && !rc; i++) {
        int64_t id = json_int(json_at(&list, i), -1);
        if (id < 0 || id >= vocab)
            rc = error_set(e, ERR_RUNTIME, "stdin: item %u is not an id of this vocabulary (0 to %d)", i, vocab - 1);
        else if ((rc = decoder_add(&d, (int32_t)id, &bytes)))
            rc = error_set(e, rc, "stdin: item %u: id %lld cannot be decoded", i, (long long)id);
    }
    if (!rc && decoder_flush(&d, &bytes)) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = write_buf(&bytes, e);
out:
    arena_free(&arena);
    buf_free(&text);
    buf_free(&bytes);
    return rc;
}

int inspect_render(struct app *a, struct error *e) {
    const char *path = a->opts.v[OPT_RENDER].text, *template = a->opts.v[OPT_TEMPLATE].text;
    struct buf conv_text = {0};
    struct arena arena = {0};
    struct json conv;
    struct text text = {0};
    /* a template file needs no checkpoint; the built-in model's BOS and EOS would be wrong for it */
    bool no_dir = template && !a->opts.v[OPT_MODEL].text;
    int rc = no_dir ? 0 : open_find_model(a, e);
    if (rc || (rc = chat_template_open(&a->template, no_dir ? NULL : a->model_dir, template, e))) return rc;
    if ((rc = input_file(path, &conv_text, e)) ||
        (rc = json_parse(&arena, conv_text.data ? conv_text.data : "", conv_text.len, 0, path, &conv, e))) {
        if (rc == ERR_MODEL) rc = e->code = ERR_RUNTIME;
    } else if (!(rc = chat_template_render(a->template, &conv, &text, e)) && text.n) {
        const struct json *tools = json_get(&conv, "tools");
        if (tools && tools->type == JSON_ARRAY && tools->n && !chat_template_takes_tools(a->template))
            report_note("the chat template does not use tools");
        out_write(text.data, text.n);
    }
    text_free(&text);
    arena_free(&arena);
    buf_free(&conv_text);
    return rc;
}

/* --- ids in, logits or ids out ---------------------------------------------------------------- */

/* Parses "1,2,3", "[1, 2, 3]" or @FILE with the same. */
static int parse_ids(const char *arg, struct ids *out, struct error *e) {
    struct buf text = {0};
    size_t cap = out->cap;
    int rc = arg[0] == '@' ? input_file(arg + 1, &text, e) : buf_str(&text, arg);
    const char *s = text.data ? text.data : "";
    while (!rc) {
        char *end;
        s += strspn(s, " \t\r\n,[]");
        if (!*s) break;
        errno = 0;
        long v = strtol(s, &end, 10);
        if (end == s) rc = error_set(e, ERR_USAGE, "--tokens: '%.20s' is not an id", s);
        else if (errno || v < 0 || v > INT32_MAX)
            rc = error_set(e, ERR_USAGE, "--tokens: %.*s is not a token id", (int)(end - s > 24 ? 24 : end - s), s);
        else if (mem_grow(&out->data, &cap, out->n + 1, sizeof *out->data)) rc = error_set(e, ERR_MEMORY, "no memory");
        else out->data[out->n++] = (int32_t)v;
        out->cap = cap;
        s = end;
    }
    buf_free(&text);
    if (!rc && !out->n) rc = error_set(e, ERR_USAGE, "--tokens: no ids");
    return rc;
}

struct logits_file {
    struct file_out out;
    bool to_stdout;
    int vocab, write_errno; /* errno of the first failed write */
};
static int write_logits(void *ctx, int position, const float *logits) {
    struct logits_file *f = ctx;
    size_t n = (size_t)f->vocab * sizeof *logits;
    if (f->to_stdout) return out_write(logits, n);
    int rc = file_write_all(f->out.fd, logits, n);
    if (rc) f->write_errno = -rc;
    return rc != 0;
}

static int run_tokens(struct app *a, struct request *r, struct ids *out, struct error *e) {
    struct session *s;
    struct event ev;
    size_t cap = 0;
    int rc = session_open(a->engine, &s, e);
    if (rc) return rc;
    rc = session_submit(s, r, e);
    while (!rc) {
        if (!engine_poll(a->engine, &ev, -1)) continue;
        if (ev.kind == EVENT_TOKEN) {
            if (mem_grow(&out->data, &cap, out->n + 1, sizeof *out->data)) rc = error_set(e, ERR_MEMORY, "no memory");
            else out->data[out->n++] = ev.token;
        } else if (ev.kind == EVENT_ERROR) {
            *e = ev.error;
            rc = e->code;
        } else if (ev.kind == EVENT_DONE) {
            if (a->opts.v[OPT_STATS].on) report_stats(&ev.stats);
            if (a->opts.v[OPT_EXPLAIN].on) report_explain(&ev.stats);
            if (ev.reason == DONE_CONTEXT && (int)out->n < r->max_tokens)
                rc = error_set(e, ERR_CONTEXT, "the context of %d tokens is full after %zu of %d ids",
                               engine_info(a->engine)->context, out->n, r->max_tokens);
            break;
        }
    }
    session_close(&s);
    return rc;
}

/* Reads the images of -f, whose placeholders are among the ids. */
static int read_images(struct app *a, const struct opt_value *files, struct prompt_images *out, struct error *e) {
    int rc = 0;
    for (size_t i = 0; i < files->n_items && !rc; i++) {
        struct buf bytes = {0};
        rc = input_file(files->items[i], &bytes, e);
        if (!rc) rc = prompt_images_add(a, files->items[i], &bytes, out, e);
        buf_free(&bytes);
    }
    return rc;
}

int inspect_tokens(struct app *a, struct error *e) {
    const struct opt_value *v = a->opts.v;
    struct ids out = {0};
    struct ids ids = {0};
    struct prompt_images images = {0};
    struct logits_file file = {.out = {.fd = -1}};
    const char *path = v[OPT_LOGITS_OUT].text;
    int rc = parse_ids(v[OPT_TOKENS].text, &ids, e);
    if (!rc && path && !strcmp(path, "-") && a->tty_out)
        rc = error_set(e, ERR_USAGE, "--logits-out -: stdout is a terminal, and logits are binary; redirect it");
    if (!rc && v[OPT_IDS].on && !v[OPT_MAX_TOKENS].text)
        rc = error_set(e, ERR_USAGE, "--ids needs -n N, the number of ids to generate");
    if (!rc) rc = open_find_model(a, e);
    if (!rc) rc = open_engine(a, e);
    if (rc) goto out;
    if ((rc = read_images(a, &v[OPT_FILE], &images, e)) || (rc = prompt_images_place(a, &images, &ids, e))) goto out;
    struct request r = {.tokens = ids.data, .n = (int)ids.n, .images = images.v, .n_images = (int)images.n};
    const struct engine_info *info = engine_info(a->engine);
    for (size_t i = 0; i < ids.n && !rc; i++)
        if (ids.data[i] >= info->vocab)
            rc = error_set(e, ERR_USAGE, "--tokens: %d is outside this vocabulary (0 to %d)", ids.data[i],
                           info->vocab - 1);
    if (rc) goto out;
    if (path) {
        file.vocab = info->vocab;
        file.to_stdout = !strcmp(path, "-");
        if (!file.to_stdout && (rc = file_out_open(&file.out, path, 0666, e))) goto out;
        r.logits = write_logits;
        r.logits_ctx = &file;
    } else {
        r.max_tokens = (int)v[OPT_MAX_TOKENS].integer;
        r.flags = REQ_IGNORE_EOS;
        open_sampling(a, &a->opts, &r.sampling);
    }
    rc = run_tokens(a, &r, &out, e);
    if (file.write_errno) rc = error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(file.write_errno));
    else if (file.to_stdout && out_failed()) rc = out_check(e);
    int closed = file_out_close(&file.out, !rc, e);
    if (!rc) rc = closed;
    struct error ids_error;
    int wrote = v[OPT_IDS].on && (!rc || rc == ERR_CONTEXT) ? write_ids(out.data, out.n, rc ? &ids_error : e) : 0;
    if (!rc) rc = wrote;
out:
    prompt_images_free(&images);
    ids_free(&ids);
    ids_free(&out);
    return rc;
}
