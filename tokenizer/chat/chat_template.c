#include "tokenizer/chat/chat_template.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/gguf_file.h"
#include "base/hash.h"
#include "tokenizer/chat/builtin_templates.h"
#include "tokenizer/chat/chat_forms.h"
#include "tokenizer/jinja/jinja.h"

/* Owns the chat templates of a checkpoint and the special tokens that they may name. Searches in the order of
 * transformers: chat_template.jinja, chat_template.json, tokenizer_config.json. Rendering is in jinja/. */

enum { FILE_MAX = 64 << 20, N_SPECIAL = 7 };
static const char *const special_names[N_SPECIAL] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                     "pad_token", "cls_token", "mask_token"};

struct chat_template {
    struct jinja *default_template, *tool_template; /* tool_template: the one named "tool_use", or NULL */
    bool is_missing;                                /* while it is opened: the model has no template */
    /* default_template with earlier calls; NULL: that one writes them, or knows no tools */
    struct jinja *calls_template;
    struct jinja_var vars[N_SPECIAL + 1];
    struct arena arena; /* holds the text of vars */
    struct dialect_set dialects;
    struct chat_forms forms;
    uint64_t hash;
};

/* Returns the text that tells which dialects a model writes. */
static struct markup_range source_of(const struct chat_template *c) {
    size_t n;
    const char *s = jinja_source(c->default_template ? c->default_template : c->tool_template, &n);
    return (struct markup_range){s, s + n};
}

/* Parses a template. One without text is none: converters and fine-tunes leave such. */
static int parse_template(struct jinja **to, const char *s, size_t n, const char *what, struct error *e) {
    size_t blank = 0;
    jinja_close(to);
    while (blank < n && strchr(" \t\r\n", s[blank]) && s[blank]) blank++;
    return blank == n ? 0 : jinja_parse(to, s, n, what, e);
}
static int read_template(struct jinja **to, const char *path, struct error *e) {
    char *s;
    size_t n;
    int rc = file_read(path, FILE_MAX, &s, &n, e);
    if (rc) return rc;
    rc = parse_template(to, s, n, path, e);
    mem_free(s);
    return rc;
}

/* Reads the template that the user gives. */
static int read_given_template(struct chat_template *c, const char *path, struct error *e) {
    const int rc = read_template(&c->default_template, path, e);
    return rc || c->default_template ? rc : error_set(e, ERR_USAGE, "%s: the chat template is empty", path);
}

static int add_named_template(struct chat_template *c, const char *name, size_t name_n, const struct json *text,
                              const char *path, struct error *e) {
    bool is_default = name_n == 7 && !memcmp(name, "default", 7),
         is_for_tools = name_n == 8 && !memcmp(name, "tool_use", 8);
    if (!is_default && !is_for_tools) return 0; /* others ("rag") are never selected automatically */
    if (!text || text->type != JSON_STRING) return error_set(e, ERR_MODEL, "%s: a chat template is not a string", path);
    return parse_template(is_for_tools ? &c->tool_template : &c->default_template, text->string, text->n, path, e);
}
/* Reads "chat_template" of a JSON file: a string, or a list or object of named templates. */
static int add_json_templates(struct chat_template *c, const struct json *t, const char *path, struct error *e) {
    int rc = 0;
    if (!t || t->type == JSON_NULL) return 0;
    if (t->type == JSON_STRING) return parse_template(&c->default_template, t->string, t->n, path, e);
    if (t->type != JSON_ARRAY && t->type != JSON_OBJECT)
        return error_set(e, ERR_MODEL, "%s: chat_template is neither a string nor a list of named strings", path);
    for (uint32_t i = 0; i < t->n && !rc; i++) {
        const struct json *name = t->type == JSON_OBJECT ? &t->items[2 * i] : json_get(&t->items[i], "name");
        const struct json *text = t->type == JSON_OBJECT ? &t->items[2 * i + 1] : json_get(&t->items[i], "template");
        if (!name || name->type != JSON_STRING) return error_set(e, ERR_MODEL, "%s: a chat template has no name", path);
        rc = add_named_template(c, name->string, name->n, text, path, e);
    }
    if (!rc && !c->default_template && !c->tool_template)
        return error_set(e, ERR_MODEL, "%s: several chat templates, but none is named default", path);
    return rc;
}

/* Puts in front of a template what writes the calls of earlier answers, if the template leaves them out. */
static int make_calls_template(struct chat_template *c, struct error *e) {
    size_t n;
    const char *s = jinja_source(c->default_template, &n);
    const char *past = c->dialects.past;
    if (!past || c->tool_template || !chat_template_takes_tools(c) || memmem(s, n, "tool_calls", 10)) return 0;
    struct buf b = {0};
    buf_str(&b, past);
    int rc = buf_add(&b, s, n) ? error_set(e, ERR_MEMORY, "no memory for the chat template")
                               : jinja_parse(&c->calls_template, b.data, b.len, "chat template", e);
    buf_free(&b);
    return rc;
}

/* Reads the special tokens: strings, or objects with "content". The first file that defines a token wins. */
static int read_special_tokens(struct chat_template *c, const struct json *config, struct error *e) {
    for (int i = 0; i < N_SPECIAL; i++) {
        const struct json *t = json_get(config, special_names[i]);
        if (t && t->type == JSON_OBJECT) t = json_get(t, "content");
        if (!t || t->type != JSON_STRING || c->vars[i].text) continue;
        c->vars[i].text = arena_strndup(&c->arena, t->n ? t->string : "", t->n);
        c->vars[i].n = t->n;
        if (!c->vars[i].text) return error_set(e, ERR_MEMORY, "no memory for the chat template");
    }
    return 0;
}

/* Parses dir/name as JSON and calls use(). A missing file is not an error. */
static int read_json_file(struct chat_template *c, const char *dir, const char *name,
                          int (*use)(struct chat_template *, const struct json *, const char *, struct error *),
                          struct error *e) {
    char path[4096], *s;
    size_t n;
    struct arena a = {0};
    struct json root;
    int rc = file_join(path, sizeof path, dir, name, e);
    if (rc || !file_exists(path)) return rc;
    if ((rc = file_read(path, FILE_MAX, &s, &n, e))) return rc;
    if (!(rc = json_parse(&a, s, n, JSON_PYTHON, path, &root, e))) rc = use(c, &root, path, e);
    arena_free(&a);
    mem_free(s);
    return rc;
}
static int use_special_tokens(struct chat_template *c, const struct json *j, const char *path, struct error *e) {
    return read_special_tokens(c, j, e);
}
static int use_template(struct chat_template *c, const struct json *j, const char *path, struct error *e) {
    return add_json_templates(c, json_get(j, "chat_template"), path, e);
}
static int use_builtin(struct chat_template *c, const struct json *config, const char *path, struct error *e) {
    const struct json *type = json_get(config, "model_type");
    for (const struct builtin_template *k = builtin_templates; k->model_type; k++)
        if (json_is(type, k->model_type)) return parse_template(&c->default_template, k->text, k->n_text, k->file, e);
    return 0;
}

static int find_template(struct chat_template *c, const char *dir, struct error *e) {
    char path[4096];
    int rc = file_join(path, sizeof path, dir, "chat_template.jinja", e);
    if (rc) return rc;
    if (file_exists(path) && (rc = read_template(&c->default_template, path, e))) return rc;
    if (c->default_template) {
        rc = file_join(path, sizeof path, dir, "additional_chat_templates/tool_use.jinja", e);
        return !rc && file_exists(path) ? read_template(&c->tool_template, path, e) : rc;
    }
    static const char *const places[] = {"chat_template.json", "tokenizer_config.json"};
    for (int i = 0; i < 2 && !c->default_template && !c->tool_template && !rc; i++)
        rc = read_json_file(c, dir, places[i], use_template, e);
    if (!rc && !c->default_template && !c->tool_template) rc = read_json_file(c, dir, "config.json", use_builtin, e);
    if (rc || c->default_template || c->tool_template) return rc;
    c->is_missing = true;
    return error_set(e, ERR_MODEL,
                     "%s: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); give "
                     "one, or use the model without (--template, --raw)",
                     dir);
}

/* --- GGUF: template and special tokens are metadata ------------------------------------------- */

static int read_gguf_special_tokens(struct chat_template *c, const struct json *meta, struct error *e) {
    /* "seperator" is the spelling of the format */
    static const char *const ids[N_SPECIAL] = {"bos", "eos", "unknown", "seperator", "padding", "cls", "mask"};
    for (int i = 0; i < N_SPECIAL; i++) {
        char key[64];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", ids[i]);
        int64_t id = json_int(json_get(meta, key), -1);
        const struct json *t =
            id < 0 || id > UINT32_MAX ? NULL : json_at(json_get(meta, "tokenizer.ggml.tokens"), (uint32_t)id);
        if (!t || t->type != JSON_STRING) continue;
        if (!(c->vars[i].text = arena_strndup(&c->arena, t->string, t->n)))
            return error_set(e, ERR_MEMORY, "no memory for the chat template");
        c->vars[i].n = t->n;
    }
    return 0;
}
static int read_gguf_templates(struct chat_template *c, const struct json *meta, const char *file, struct error *e) {
    static const char *const keys[] = {"tokenizer.chat_template", "tokenizer.chat_template.default",
                                       "tokenizer.chat_template.tool_use"};
    int rc = 0;
    for (int i = 0; i < 3 && !rc; i++) {
        const struct json *t = json_get(meta, keys[i]);
        struct jinja **to = i == 2 ? &c->tool_template : &c->default_template;
        if (!t || *to) continue;
        rc = t->type == JSON_STRING ? parse_template(to, t->string, t->n, file, e)
                                    : error_set(e, ERR_MODEL, "%s: metadata '%s' is not a string", file, keys[i]);
    }
    if (rc || c->default_template || c->tool_template) return rc;
    c->is_missing = true;
    return error_set(e, ERR_MODEL,
                     "%s has no chat template (a base model?): --raw continues plain text, --template FILE supplies a "
                     "template",
                     file);
}
static int open_gguf(struct chat_template *c, const char *file, const char *template_file, struct error *e) {
    struct file_map map;
    struct arena a = {0};
    struct gguf g;
    int rc = file_map(&map, file, e);
    if (rc) return rc;
    if (!(rc = gguf_parse(&g, &a, map.data, map.size, file, e)) && !(rc = read_gguf_special_tokens(c, &g.meta, e)))
        rc = template_file ? read_given_template(c, template_file, e) : read_gguf_templates(c, &g.meta, file, e);
    arena_free(&a);
    file_unmap(&map);
    return rc;
}

/* Sets the tokens that files do not name as transformers does for a tekken.json without tokenizer.json. */
static int add_tekken_tokens(struct chat_template *c, const char *dir, struct error *e) {
    /* in the order of special_names */
    static const char *const tokens[N_SPECIAL] = {"<s>", "</s>", "<unk>", NULL, "<pad>"};
    char path[4096];
    int rc = file_join(path, sizeof path, dir, "tokenizer.json", e);
    if (rc || file_exists(path) || (rc = file_join(path, sizeof path, dir, "tekken.json", e)) || !file_exists(path))
        return rc;
    for (int i = 0; i < N_SPECIAL; i++)
        if (!c->vars[i].text && tokens[i]) c->vars[i].text = tokens[i], c->vars[i].n = strlen(tokens[i]);
    return 0;
}

static int open_files(struct chat_template *c, const char *dir, const char *template_file, struct error *e) {
    int rc = 0;
    if (dir && !(rc = read_json_file(c, dir, "tokenizer_config.json", use_special_tokens, e)))
        rc = read_json_file(c, dir, "special_tokens_map.json", use_special_tokens, e);
    if (!rc && dir) rc = add_tekken_tokens(c, dir, e);
    if (rc) return rc;
    if (template_file) return read_given_template(c, template_file, e);
    return dir ? find_template(c, dir, e)
               : error_set(e, ERR_MODEL, "no chat template: give a model or a template file");
}

static int find_forms(struct chat_template *c, struct error *e) {
    const struct jinja *without = c->calls_template ? c->calls_template : c->default_template;
    const struct chat_forms_source source = {.with_tools = !chat_template_takes_tools(c) ? NULL
                                                           : c->tool_template            ? c->tool_template
                                                                                         : without,
                                             .without_tools = without,
                                             .vars = c->vars};
    return chat_forms_find(&source, &c->forms, e);
}

static uint64_t mix_source_hash(const struct jinja *j, uint64_t seed) {
    size_t n;
    const char *s = j ? jinja_source(j, &n) : NULL;
    return s ? hash64(s, n, seed) : seed;
}
int chat_template_open(struct chat_template **out, const char *dir, const char *template_file, struct error *e) {
    struct chat_template *c = mem_calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return error_set(e, ERR_MEMORY, "no memory for the chat template");
    for (int i = 0; i < N_SPECIAL; i++) c->vars[i].name = special_names[i];
    char file[4096];
    int rc = dir ? gguf_find(dir, file, sizeof file, e) : 0;
    if (rc >= 0) rc = rc ? open_gguf(c, file, template_file, e) : open_files(c, dir, template_file, e);
    if (!rc) dialects_find(&c->dialects, source_of(c));
    if (!rc && c->default_template) rc = make_calls_template(c, e);
    if (!rc) rc = find_forms(c, e);
    if (rc) {
        if (rc == ERR_MODEL && dir && !template_file && !c->is_missing)
            error_prefix(e, "chat template (use --template FILE, or --raw for none)");
        chat_template_close(&c);
        return rc;
    }
    c->hash = mix_source_hash(c->tool_template, mix_source_hash(c->default_template, 0));
    *out = c;
    return 0;
}
void chat_template_close(struct chat_template **c) {
    if (!*c) return;
    jinja_close(&(*c)->default_template);
    jinja_close(&(*c)->tool_template);
    jinja_close(&(*c)->calls_template);
    arena_free(&(*c)->arena);
    mem_free(*c);
    *c = NULL;
}
uint64_t chat_template_hash(const struct chat_template *c) { return c->hash; }

int chat_template_render(const struct chat_template *c, const struct json *vars, struct text *out, struct error *e) {
    const struct json *tools = json_get(vars, "tools");
    const struct jinja *j =
        tools && tools->type != JSON_NULL && c->tool_template ? c->tool_template : c->default_template;
    if (!j)
        return error_set(
            e, ERR_RUNTIME,
            "this model has only a chat template for tool use; give tools or another template (--template)");
    return jinja_render(j, vars, c->vars, out, e);
}
int chat_template_render_prompt(const struct chat_template *c, const struct json *vars, struct text *out,
                                struct error *e) {
    struct arena a = {0};
    struct json fitted;
    int rc = chat_forms_apply(&c->forms, vars, &a, &fitted, e);
    if (!rc && c->calls_template) rc = jinja_render(c->calls_template, &fitted, c->vars, out, e);
    else if (!rc) rc = chat_template_render(c, &fitted, out, e);
    arena_free(&a);
    return rc;
}
const struct dialect_set *chat_template_dialects(const struct chat_template *c) { return &c->dialects; }

/* Whether a control token is, or begins, a mark around a part of an answer. */
static bool is_mark(const struct dialect_set *d, const char *token, size_t n) {
    for (size_t i = 0; d->active[i]; i++)
        if (!strncmp(d->active[i]->open, token, n) || (d->active[i]->close && !strncmp(d->active[i]->close, token, n)))
            return true;
    return false;
}
/* Finds the first control token of a text that follows an answer. Only white space and closing marks may precede it. */
static int first_control(const struct chat_template *c, const struct tokenizer *t, const char *s, size_t n, int32_t *id,
                         struct error *e) {
    struct ids ids = {0};
    int rc = tokenizer_encode(t, s, n, TEXT_TEMPLATE, &ids, e);
    for (size_t i = 0; i < ids.n && !rc && *id < 0; i++) {
        bool is_special = false;
        size_t n_bytes = 0, k = 0;
        const char *bytes = tokenizer_token_bytes(t, ids.data[i], &n_bytes, &is_special);
        if (!bytes) break;
        if (is_special && !is_mark(&c->dialects, bytes, n_bytes)) *id = ids.data[i];
        while (k < n_bytes && strchr(" \n\r\t", bytes[k])) k++;
        if (!is_special && k < n_bytes) break;
    }
    ids_free(&ids);
    return rc;
}
int chat_template_end(const struct chat_template *c, const struct tokenizer *t, int32_t *id, struct error *e) {
    static const char answer[] = "hearth-answer", turn[] =
                                                      "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
                                                      "{\"role\": \"assistant\", \"content\": \"hearth-answer\"}], "
                                                      "\"add_generation_prompt\": false}";
    struct arena a = {0};
    struct json vars;
    struct text text = {0};
    *id = -1;
    if (c->dialects.headers) return 0;
    int rc = json_parse(&a, turn, sizeof turn - 1, 0, "a turn", &vars, e);
    if (!rc) rc = chat_template_render(c, &vars, &text, e);
    const char *at = rc ? NULL : memmem(text.data, text.n, answer, sizeof answer - 1);
    if (at) {
        at += sizeof answer - 1;
        rc = first_control(c, t, at, (size_t)(text.data + text.n - at), id, e);
    }
    text_free(&text);
    arena_free(&a);
    return rc == ERR_MEMORY ? rc : 0; /* a template that refuses this turn says nothing */
}

static bool is_word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

bool chat_template_takes_tools(const struct chat_template *c) {
    static const char word[] = "tools";
    const size_t n = sizeof word - 1;
    const char *s = source_of(c).s, *end = source_of(c).end;
    if (c->tool_template) return true;
    for (const char *at = s; (at = memmem(at, (size_t)(end - at), word, n)); at++)
        if (at > s && at + n < end && !is_word_char(at[-1]) && at[-1] != '\'' && at[-1] != '"' && !is_word_char(at[n]))
            return true;
    return false;
}

bool chat_template_reads(const struct chat_template *c, const char *variable) {
    const struct jinja *const all[] = {c->default_template, c->tool_template, c->calls_template};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] && jinja_reads(all[i], variable)) return true;
    return false;
}

bool chat_template_mentions(const struct chat_template *c, const char *word, size_t n) {
    const char *s = source_of(c).s, *end = source_of(c).end;
    for (const char *at = s; n && (at = memmem(at, (size_t)(end - at), word, n)); at++)
        if (at > s && at + n < end && (at[-1] == '\'' || at[-1] == '"') && at[n] == at[-1]) return true;
    return false;
}
