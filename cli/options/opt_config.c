/* Settings from the environment (HEARTH_NAME) and from the configuration file: lines of `key = value`, first the
 * general ones, then presets, each below its name in brackets. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cli/options/opt.h"
#include "cli/options/paths.h"
#include "cli/options/trim.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

static void env_name(enum opt_id id, char *out, size_t cap) {
    snprintf(out, cap, "HEARTH_%s", opt_table[id].name);
    for (char *s = out; *s; s++) *s = *s == '-' ? '_' : (char)toupper((unsigned char)*s);
}

static const char *next_env_name(void *ctx) {
    static char name[64];
    int *id = ctx;
    while (*id < OPT_COUNT && !(opt_table[*id].flags & OPT_SETTING)) ++*id;
    if (*id >= OPT_COUNT) return NULL;
    env_name((enum opt_id)(*id)++, name, sizeof name);
    return name + 7; /* after HEARTH_ */
}
/* Warns of variables whose name is close to a setting's. Other HEARTH_ variables may belong to the user. */
static void warn_misspelled_names(opt_warn warn, void *ctx) {
    for (char **at = environ; *at; at++) {
        char name[64], near[64], text[256];
        size_t n = strcspn(*at, "=");
        int id = 0;
        bool known = false;
        if (strncmp(*at, "HEARTH_", 7) || n >= sizeof name) continue;
        snprintf(name, sizeof name, "%.*s", (int)n - 7, *at + 7);
        for (const char *s; !known && (s = next_env_name(&id));) known = !strcmp(s, name);
        id = 0;
        if (known || !opt_nearest(name, next_env_name, &id, near, sizeof near)) continue;
        snprintf(text, sizeof text, "HEARTH_%s is not a setting and is ignored; did you mean HEARTH_%s?", name, near);
        warn(ctx, text);
    }
}

int opt_config_environment(struct opts *o, opt_warn warn, void *ctx, struct error *e) {
    warn_misspelled_names(warn, ctx);
    for (int id = 0; id < OPT_COUNT; id++) {
        char name[64];
        if (!(opt_table[id].flags & OPT_SETTING) || o->v[id].origin >= ORIGIN_ENV) continue;
        env_name((enum opt_id)id, name, sizeof name);
        const char *v = getenv(name);
        int rc = v && *v ? opt_set(o, (enum opt_id)id, v, ORIGIN_ENV, name, e) : 0;
        if (!rc && id == OPT_MODEL && v && *v) o->default_model = o->v[id].text;
        if (rc) return rc;
    }
    return 0;
}

static char *trim_blanks(char *s) {
    while (*s == ' ' || *s == '\t') s++;
    s[trim_end(s, strlen(s), " \t\r\n")] = 0;
    return s;
}

/* A quoted value is a JSON string; if it does not parse as one, the text between the quotes. */
static const char *unquote(struct opts *o, char *s) {
    size_t n = strlen(s);
    struct json j;
    if (n < 2 || s[0] != '"' || s[n - 1] != '"') return s;
    if (!json_parse(&o->arena, s, n, 0, "value", &j, NULL) && j.type == JSON_STRING) {
        const char *copy = arena_strndup(&o->arena, j.string, j.n);
        return copy ? copy : s;
    }
    s[n - 1] = 0;
    return s + 1;
}

/* Expands "~/models" as a shell does. */
static const char *expand_home(struct opts *o, const char *v) {
    char path[PATHS_MAX];
    char *out = paths_expand(v, path, sizeof path) ? NULL : arena_alloc(&o->arena, strlen(path) + 1);
    return out ? strcpy(out, path) : v;
}

struct config_reader {
    struct opts *o;
    opt_warn warn; /* NULL: no warnings */
    void *ctx;
    int number;             /* line number, from 1 */
    enum opt_origin origin; /* origin of the values in this part of the file */
    bool skipped, found;    /* skipped: in the section of another preset; found: the preset's section was read */
};

static void warn_line(const struct config_reader *r, const char *what, const char *text) {
    char line[512];
    if (!r->warn) return;
    snprintf(line, sizeof line, "%s:%d: %s '%.100s'; the line is ignored", r->o->config_path, r->number, what, text);
    r->warn(r->ctx, line);
}

/* Begins the section of a preset. name ends with a bracket. */
static int begin_section(struct config_reader *r, char *name, struct error *e) {
    struct opts *o = r->o;
    size_t n = strlen(name);
    if (n < 2 || name[n - 1] != ']') {
        warn_line(r, "no ']' in", name);
        return 0;
    }
    name[n - 1] = 0;
    name = trim_blanks(name);
    const char *copy = arena_strndup(&o->arena, name, strlen(name));
    if (!copy || mem_grow(&o->presets, &o->cap_presets, o->n_presets + 1, sizeof *o->presets))
        return error_set(e, ERR_MEMORY, "no memory");
    o->presets[o->n_presets++] = copy;
    r->skipped = !o->v[OPT_PRESET].text || strcmp(o->v[OPT_PRESET].text, name) != 0;
    r->found |= !r->skipped;
    r->origin = ORIGIN_PRESET;
    return 0;
}

static int parse_config_line(struct config_reader *r, char *line, struct error *e) {
    struct opts *o = r->o;
    line = trim_blanks(line);
    if (!*line || *line == '#') return 0;
    if (*line == '[') return begin_section(r, line + 1, e);
    char *eq = strchr(line, '=');
    if (!eq) {
        warn_line(r, "no '=' in", line);
        return 0;
    }
    *eq = 0;
    char *key = trim_blanks(line), where[600];
    const char *value = unquote(o, trim_blanks(eq + 1));
    bool negated = false;
    enum opt_id id = opt_find(key, strlen(key), &negated);
    if (id == OPT_COUNT || negated || !(opt_table[id].flags & OPT_SETTING) ||
        (r->origin == ORIGIN_PRESET && id == OPT_PRESET)) {
        warn_line(r, "unknown key", key);
        return 0;
    }
    if (r->skipped) return 0;
    if (id == OPT_MODEL && r->origin == ORIGIN_FILE && !o->default_model) {
        const char *const expanded = expand_home(o, value);
        o->default_model = arena_strndup(&o->arena, expanded, strlen(expanded));
    }
    if (o->v[id].origin > r->origin) return 0;
    snprintf(where, sizeof where, "%s:%d: %s", o->config_path, r->number, opt_table[id].name);
    return opt_set(o, id, opt_table[id].flags & OPT_FILE_PATH ? expand_home(o, value) : value, r->origin, where, e);
}

static int fail_unknown_preset(const struct opts *o, struct error *e) {
    struct buf names = {0};
    for (size_t i = 0; i < o->n_presets; i++) buf_fmt(&names, "%s%s", i ? ", " : "", o->presets[i]);
    int rc = error_set(e, ERR_USAGE, "no preset '%.60s': %s%s", o->v[OPT_PRESET].text,
                       o->n_presets ? "the configuration file has "
                                    : "a preset is a section [NAME] of the configuration file, ",
                       names.len        ? names.data
                       : o->config_path ? o->config_path
                                        : "~/.config/hearth/config");
    buf_free(&names);
    return rc;
}

static char *skip_mark(char *data, size_t size) { return data ? data + utf8_mark(data, size) : NULL; }

static int read_config(struct opts *o, opt_warn warn, void *ctx, struct error *e) {
    struct config_reader r = {.o = o, .warn = warn, .ctx = ctx, .origin = ORIGIN_FILE};
    char path[PATHS_MAX], *data;
    size_t size;
    o->n_presets = 0;
    if (paths_get(PATHS_CONFIG, "config", path, sizeof path) || (!file_exists(path) && !file_is_dir(path)))
        return o->v[OPT_PRESET].text ? fail_unknown_preset(o, e) : 0;
    int rc = file_read(path, MAX_CONFIG_BYTES, &data, &size, e);
    if (rc) return rc;
    mem_free(o->config_path);
    if (!(o->config_path = mem_strdup(path))) rc = error_set(e, ERR_MEMORY, "no memory");
    for (char *line = skip_mark(data, size), *end; !rc && line; line = end) {
        if ((end = strchr(line, '\n'))) *end++ = 0;
        r.number++;
        rc = parse_config_line(&r, line, e);
    }
    mem_free(data);
    return !rc && o->v[OPT_PRESET].text && !r.found ? fail_unknown_preset(o, e) : rc;
}

int opt_config_file(struct opts *o, opt_warn warn, void *ctx, struct error *e) { return read_config(o, warn, ctx, e); }

int opt_config_preset(struct opts *o, const char *name, struct error *e) {
    struct opt_value was[OPT_COUNT];
    memcpy(was, o->v, sizeof was);
    for (int id = 0; id < OPT_COUNT; id++) /* forget what an earlier preset and /set have set */
        if (opt_table[id].flags & OPT_LIVE && (o->v[id].origin == ORIGIN_PRESET || o->v[id].origin == ORIGIN_CHAT))
            o->v[id] = (struct opt_value){.text = opt_table[id].def};
    if (o->v[OPT_MODEL].origin >= ORIGIN_FLAG) o->v[OPT_MODEL].origin = ORIGIN_ENV; /* the preset's model replaces it */
    int rc = opt_set(o, OPT_PRESET, name, ORIGIN_CHAT, "/preset", e);
    if (!rc) rc = read_config(o, NULL, NULL, e);
    for (int id = 0; id < OPT_COUNT; id++) /* the others were used when the model was opened */
        if (rc || (!(opt_table[id].flags & OPT_LIVE) && id != OPT_MODEL && id != OPT_PRESET)) o->v[id] = was[id];
    return rc;
}

int opt_config_write(const char *key, const char *value, struct error *e) {
    char path[PATHS_MAX], *data = NULL;
    struct buf b = {0};
    size_t size;
    int rc = paths_make(PATHS_CONFIG, "config", path, sizeof path, e);
    if (!rc && file_exists(path)) rc = file_read(path, MAX_CONFIG_BYTES, &data, &size, e);
    if (rc) return rc;
    bool is_written = false, in_general = true;
    for (char *line = skip_mark(data, size), *end; line && *line; line = end) {
        size_t n = strcspn(line, "\n"), indent = strspn(line, " \t"), k = strlen(key);
        end = line + n + (line[n] == '\n');
        if (line[indent] == '[') in_general = false;
        bool sets_key =
            in_general && !strncmp(line + indent, key, k) && line[indent + k + strspn(line + indent + k, " \t")] == '=';
        if (!is_written && (sets_key || !in_general)) is_written = !buf_fmt(&b, "%s = %s\n", key, value);
        if (!sets_key) buf_fmt(&b, "%.*s\n", (int)n, line);
    }
    if (!is_written) buf_fmt(&b, "%s = %s\n", key, value);
    rc = b.failed ? error_set(e, ERR_MEMORY, "no memory") : file_write(path, b.data, b.len, e);
    mem_free(data);
    buf_free(&b);
    return rc;
}

static const char *origin_text(const struct opts *o, enum opt_id id, char *buf, size_t cap) {
    switch (o->v[id].origin) {
    case ORIGIN_FLAG: return "flag";
    case ORIGIN_CHAT: return "/set";
    case ORIGIN_ENV: env_name(id, buf, cap); return buf;
    case ORIGIN_FILE:
    case ORIGIN_PRESET: return o->config_path;
    default: return "default";
    }
}

/* Prints a configuration file that restores the same settings, grouped by origin. */
static void print_config_lines(const struct opts *o, struct buf *out) {
    static const uint8_t origins[] = {ORIGIN_FLAG, ORIGIN_PRESET, ORIGIN_ENV, ORIGIN_FILE, ORIGIN_DEFAULT, ORIGIN_NONE};
    for (size_t k = 0; k < sizeof origins; k++) {
        char last[64] = "", name[64];
        for (int id = 0; id < OPT_COUNT; id++) {
            const struct opt_value *v = &o->v[id];
            if (!(opt_table[id].flags & OPT_SETTING) || v->origin != origins[k]) continue;
            const char *origin = v->text ? origin_text(o, (enum opt_id)id, name, sizeof name) : "not set";
            if (strncmp(last, origin, sizeof last - 1)) buf_fmt(out, "# %s\n", origin);
            snprintf(last, sizeof last, "%s", origin);
            bool live = v->text && id != OPT_PRESET; /* the values of the preset are printed, its section is not */
            buf_fmt(out, live ? "%s = " : v->text ? "# %s = " : "# %s =", opt_table[id].name);
            size_t n = v->text ? strlen(v->text) : 0;
            bool quote =
                n && (strpbrk(v->text, "\n\r") || strchr(" \t\"", v->text[0]) || strchr(" \t", v->text[n - 1]));
            if (quote) json_quote(out, v->text, n);
            else if (n) buf_str(out, v->text);
            buf_char(out, '\n');
        }
    }
}

void opt_config_print(const struct opts *o, bool json, struct buf *out) {
    bool first = true;
    if (!json) {
        print_config_lines(o, out);
        return;
    }
    buf_char(out, '{');
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_value *v = &o->v[id];
        char name[64];
        if (!(opt_table[id].flags & OPT_SETTING)) continue;
        const char *origin = origin_text(o, (enum opt_id)id, name, sizeof name);
        buf_fmt(out, "%s\"%s\": {\"value\": ", first ? "" : ", ", opt_table[id].name);
        first = false;
        if (!v->text) buf_str(out, "null");
        else if (opt_table[id].kind == OPT_INT) buf_fmt(out, "%lld", (long long)v->integer);
        else if (opt_table[id].kind == OPT_NUM) buf_fmt(out, "%g", v->num);
        else if (opt_table[id].kind <= OPT_SWITCH) buf_str(out, v->on ? "true" : "false");
        else json_quote(out, v->text, strlen(v->text));
        buf_str(out, ", \"origin\": ");
        json_quote(out, origin, strlen(origin));
        buf_char(out, '}');
    }
    buf_str(out, "}\n");
}
