#include "cli/options/opt.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "cli/options/breakers.h"
#include "cli/options/opt_verb.h"

void opt_init(struct opts *o) {
    *o = (struct opts){0};
    for (int id = 0; id < OPT_COUNT; id++)
        if (opt_table[id].def) o->v[id] = (struct opt_value){.text = opt_table[id].def, .origin = ORIGIN_DEFAULT};
}

void opt_free(struct opts *o) {
    for (int id = 0; id < OPT_COUNT; id++) mem_free(o->v[id].items);
    mem_free(o->config_path);
    mem_free(o->presets);
    arena_free(&o->arena);
    *o = (struct opts){0};
}

/* --- suggestions ------------------------------------------------------------------------------ */

/* Edit distance in which a swap of neighbouring letters costs one; words longer than 31 bytes are never near. */
static int edit_distance(const char *a, const char *b) {
    int n = (int)strlen(a), m = (int)strlen(b);
    int row[3][32];
    if (n > 31 || m > 31) return 99;
    for (int j = 0; j <= m; j++) row[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best) best = up[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

bool opt_nearest(const char *word, const char *(*next)(void *ctx), void *ctx, char *best, size_t cap) {
    int best_cost = 99;
    size_t n = strlen(word);
    for (const char *w; (w = next(ctx));) {
        size_t m = strlen(w), shorter = n < m ? n : m;
        int cost = edit_distance(word, w), allowed = n < 6 ? 1 : n < 9 ? 2 : 3;
        /* a prefix is near at any length: "temperature" for temp, "max" for max-tokens */
        if (shorter >= 3 && !strncmp(word, w, shorter)) cost = cost < 2 ? cost : 1;
        if (cost > allowed || cost >= best_cost) continue;
        snprintf(best, cap, "%s", w);
        best_cost = cost;
    }
    return best_cost < 99;
}

struct name_iterator {
    int id;
    bool no;
    char text[40];
};
static const char *next_option_name(void *ctx) {
    struct name_iterator *s = ctx;
    if (s->no) {
        s->no = false;
        snprintf(s->text, sizeof s->text, "no-%s", opt_table[s->id++].name);
        return s->text;
    }
    while (s->id < OPT_COUNT && opt_table[s->id].flags & OPT_HIDDEN) s->id++;
    if (s->id >= OPT_COUNT) return NULL;
    if (opt_table[s->id].kind == OPT_SWITCH) {
        s->no = true;
        return opt_table[s->id].name;
    }
    return opt_table[s->id++].name;
}

bool opt_is_live(enum opt_id id) { return id != OPT_COUNT && opt_table[id].flags & OPT_LIVE && id != OPT_SYSTEM; }

const char *opt_elsewhere(const char *name) {
    /* llama.cpp's names, then Ollama's */
    static const struct {
        const char *name, *here;
    } rows[] = {{"n-predict", "max-tokens"},
                {"predict", "max-tokens"},
                {"ctx-size", "context"},
                {"ngl", "gpus"},
                {"gpu-layers", "gpus"},
                {"n-gpu-layers", "gpus"},
                {"hf", "model"},
                {"hf-repo", "model"},
                {"sys", "system"},
                {"np", "parallel"},
                {"chat-template", "template"},
                {"chat-template-file", "template"},
                {"json-schema", "schema"},
                {"grammar-file", "grammar"},
                {"reverse-prompt", "until"},
                {"cache-type-k", "kv"},
                {"cache-type-v", "kv"},
                {"ctk", "kv"},
                {"ctv", "kv"},
                {"model-draft", "draft"},
                {"md", "draft"},
                {"draft-max", "draft-len"},
                {"host", "listen"},
                {"port", "listen"},
                {"num-predict", "max-tokens"},
                {"num-ctx", "context"},
                {"num-gpu", "gpus"},
                {"list-models", "models"},
                {"sessions", "list"},
                {"list-sessions", "list"},
                {"chats", "list"},
                {"download", "pull"},
                {"num-thread", "threads"},
                {"keepalive", "idle"},
                {"hidethinking", "show-thinking"},
                {"nowordwrap", "plain"},
                {"format", "json-object"}};
    char clean[40];
    size_t n = strlen(name);
    for (size_t i = 0; i <= n && n < sizeof clean; i++) clean[i] = name[i] == '_' ? '-' : name[i];
    for (size_t i = 0; i < sizeof rows / sizeof *rows && n < sizeof clean; i++)
        if (!strcmp(rows[i].name, clean)) return rows[i].here;
    return NULL;
}

static int unknown_option(const char *given, const char *name, struct error *e) {
    struct name_iterator s = {0};
    char near[40];
    const char *here = opt_elsewhere(name);
    if (here)
        return error_set(e, ERR_USAGE, "unknown option '%s'; did you mean '--%s'? See hearth --help", given, here);
    if (!opt_nearest(name, next_option_name, &s, near, sizeof near))
        return error_set(e, ERR_USAGE, "unknown option '%s'; see hearth --help", given);
    return error_set(e, ERR_USAGE, "unknown option '%s'; did you mean '--%s'? See hearth --help", given, near);
}

/* --- values ----------------------------------------------------------------------------------- */

enum opt_id opt_find(const char *name, size_t n, bool *negated) {
    static const struct {
        const char *name;
        enum opt_id id;
    } aliases[] = {{"resume", OPT_CONTINUE}};
    char clean[40];
    if (negated) *negated = false;
    if (n >= sizeof clean) return OPT_COUNT;
    for (size_t i = 0; i < n; i++) clean[i] = name[i] == '_' ? '-' : name[i];
    clean[n] = 0;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (!strcmp(aliases[i].name, clean)) return aliases[i].id;
    for (int id = 0; id < OPT_COUNT; id++) {
        if (!strcmp(opt_table[id].name, clean)) return (enum opt_id)id;
        if (opt_table[id].kind == OPT_SWITCH && !strncmp(clean, "no-", 3) && !strcmp(opt_table[id].name, clean + 3)) {
            if (negated) *negated = true;
            return (enum opt_id)id;
        }
    }
    return OPT_COUNT;
}

static bool in_choices(const char *choices, const char *word) {
    size_t n = strlen(word);
    for (const char *s = choices; n && *s;) {
        size_t k = strcspn(s, " ");
        if (k == n && !memcmp(s, word, n)) return true;
        s += k + (s[k] == ' ');
    }
    return false;
}

/* Parses the yes/no words of the configuration file and the environment; -1 for others. */
static int parse_bool(const char *s) {
    static const char *const words[][5] = {{"no", "off", "false", "0", "never"}, {"yes", "on", "true", "1", "always"}};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 5; i++)
            if (!strcasecmp(s, words[t][i])) return t;
    return -1;
}

/* Parses "20G", "512M", "off"; -1 for others. */
static long long parse_size(const char *text) {
    static const char units[] = "KMGT";
    char *end;
    if (!strcasecmp(text, "off")) return 0;
    double v = *text >= '0' && *text <= '9' ? strtod(text, &end) : -1;
    const char *unit = v > 0 && *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (v <= 0 || (*end && (!unit || end[1]))) return -1;
    for (int i = unit ? (int)(unit - units) + 1 : 0; i-- > 0;) v *= 1024;
    return v >= 1 && v < 9e18 ? (long long)v : -1;
}

static const char *format_bound(double v, char *buf, size_t n) {
    if (v == floor(v) && fabs(v) < 1e15) snprintf(buf, n, "%.0f", v);
    else snprintf(buf, n, "%g", v);
    return buf;
}

static bool is_percent(const char *s) {
    const size_t n = strspn(s, "0123456789");
    return n && n <= 3 && !s[n] && *s != '0' && atoi(s) <= 100;
}

/* Whether "4k" is 4,096 of what the option counts. */
static bool id_counts_tokens(enum opt_id id) {
    return id == OPT_CONTEXT || id == OPT_MAX_TOKENS || id == OPT_THINK_LIMIT;
}

int opt_set(struct opts *o, enum opt_id id, const char *text, enum opt_origin origin, const char *where,
            struct error *e) {
    const struct opt_def *d = &opt_table[id];
    struct opt_value v = o->v[id];
    char lo[32], hi[32], *end;
    int on;
    switch (d->kind) {
    case OPT_FLAG:
    case OPT_SWITCH:
        if ((on = parse_bool(text)) < 0) return error_set(e, ERR_USAGE, "%s: '%s' is neither yes nor no", where, text);
        v.on = on;
        text = on ? "yes" : "no";
        break;
    case OPT_SIZE:
        if ((v.integer = parse_size(text)) < 0)
            return error_set(e, ERR_USAGE, "%s: '%s' is neither a size, as in 20G, nor off", where, text);
        break;
    case OPT_INT:
        errno = 0;
        v.integer = strtoll(text, &end, 10);
        if (end != text && (*end == 'k' || *end == 'K') && !end[1] && id_counts_tokens(id) &&
            !__builtin_mul_overflow(v.integer, 1024, &v.integer))
            end++;
        if (end == text || *end) return error_set(e, ERR_USAGE, "%s: '%s' is not a whole number", where, text);
        if (errno || (double)v.integer < d->lo || (double)v.integer > d->hi)
            return error_set(e, ERR_USAGE, "%s: %s is outside %s to %s", where, text,
                             format_bound(d->lo, lo, sizeof lo), format_bound(d->hi, hi, sizeof hi));
        break;
    case OPT_NUM:
        v.num = strtod(text, &end);
        if (end == text || *end || !isfinite(v.num))
            return error_set(e, ERR_USAGE, "%s: '%s' is not a number", where, text);
        if (v.num < d->lo || v.num > d->hi)
            return error_set(e, ERR_USAGE, "%s: %s is outside %s to %s", where, text,
                             format_bound(d->lo, lo, sizeof lo), format_bound(d->hi, hi, sizeof hi));
        break;
    case OPT_CHOICE:
        if (d->flags & OPT_OR_PATH && strchr(text, '/')) break;
        if (d->flags & OPT_OR_PERCENT && is_percent(text)) break;
        if (!in_choices(d->choices, text))
            return error_set(e, ERR_USAGE, "%s: '%s' is not one of: %s", where, text, d->choices);
        break;
    case OPT_FLAG_CHOICE:
        if (*text && !in_choices(d->choices, text))
            return error_set(e, ERR_USAGE, "%s: '%s' is not one of: %s", where, text, d->choices);
        v.on = true;
        break;
    case OPT_TEXT_MAYBE: v.on = true; break;
    case OPT_LIST:
        if (mem_grow(&v.items, &v.cap_items, v.n_items + 1, sizeof *v.items))
            return error_set(e, ERR_MEMORY, "no memory");
        break;
    default: break;
    }
    if (id == OPT_DRY_SEQUENCE_BREAKERS && breakers_parse(text, (char[BREAKERS_BYTES]){0}, e))
        return error_prefix(e, "%s", where);
    if (d->kind == OPT_TEXT && !*text && id != OPT_PROMPT && id != OPT_SYSTEM)
        return error_set(e, ERR_USAGE, "%s: the value is empty", where);
    const char *copy = arena_strndup(&o->arena, text, strlen(text));
    if (!copy) {
        o->v[id].items = v.items, o->v[id].cap_items = v.cap_items; /* the list may have moved */
        return error_set(e, ERR_MEMORY, "no memory");
    }
    if (d->kind == OPT_LIST) v.items[v.n_items++] = copy;
    v.text = copy;
    v.origin = (uint8_t)origin;
    o->v[id] = v;
    return 0;
}

/* --- command line ----------------------------------------------------------------------------- */

static enum opt_id find_letter(char c) {
    for (int id = 0; id < OPT_COUNT; id++)
        if (opt_table[id].letter == c) return (enum opt_id)id;
    return OPT_COUNT;
}
static bool takes_value(enum opt_id id) {
    return opt_table[id].kind >= OPT_TEXT && opt_table[id].kind != OPT_FLAG_CHOICE;
}
/* Returns the next argument, or "" if it is missing or another option. */
static const char *maybe_next(int argc, char **argv, int *i) {
    return *i + 1 < argc && *argv[*i + 1] != '-' ? argv[++*i] : "";
}

static int parse_long_option(struct opts *o, int argc, char **argv, int *i, struct error *e) {
    const char *arg = argv[*i], *name = arg + 2, *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    bool no;
    enum opt_id id = opt_find(name, n, &no);
    char where[48], word[40];
    snprintf(word, sizeof word, "%.*s", (int)n, name);
    snprintf(where, sizeof where, "--%s", word);
    if (id == OPT_COUNT) return unknown_option(where, word, e);
    const struct opt_def *d = &opt_table[id];
    if (d->kind == OPT_FLAG || d->kind == OPT_SWITCH) {
        if (eq) return error_set(e, ERR_USAGE, "%s takes no value", where);
        return opt_set(o, id, no ? "no" : "yes", ORIGIN_FLAG, where, e);
    }
    if (d->kind == OPT_FLAG_CHOICE) {
        const char *v = eq ? eq + 1 : *i + 1 < argc && in_choices(d->choices, argv[*i + 1]) ? argv[++*i] : "";
        return opt_set(o, id, v, ORIGIN_FLAG, where, e);
    }
    if (eq) return opt_set(o, id, eq + 1, ORIGIN_FLAG, where, e);
    if (d->kind == OPT_TEXT_MAYBE) return opt_set(o, id, maybe_next(argc, argv, i), ORIGIN_FLAG, where, e);
    if (*i + 1 >= argc) return error_set(e, ERR_USAGE, "%s needs a value: %s %s", where, where, d->arg);
    return opt_set(o, id, argv[++*i], ORIGIN_FLAG, where, e);
}

static int parse_short_option(struct opts *o, int argc, char **argv, int *i, struct error *e) {
    const char *arg = argv[*i];
    /* "-model x" would parse as -m "odel" */
    if (arg[2] && opt_find(arg + 1, strcspn(arg + 1, "="), NULL) != OPT_COUNT)
        return error_set(e, ERR_USAGE, "unknown option '%s'; did you mean '-%s'?", arg, arg);
    if (arg[2] && opt_elsewhere(arg + 1)) return unknown_option(arg, arg + 1, e);
    for (const char *s = arg + 1; *s; s++) {
        enum opt_id id = find_letter(*s);
        char where[4] = {'-', *s, 0, 0};
        if (id == OPT_COUNT) return unknown_option(arg, arg + 1, e);
        if (!takes_value(id)) {
            int rc = opt_set(o, id, opt_table[id].kind == OPT_FLAG_CHOICE ? "" : "yes", ORIGIN_FLAG, where, e);
            if (rc) return rc;
            continue;
        }
        bool number = opt_table[id].kind == OPT_INT || opt_table[id].kind == OPT_NUM;
        /* "-cnv" is another program's */
        if (number && isalpha((unsigned char)s[1])) return unknown_option(arg, arg + 1, e);
        if (s[1]) return opt_set(o, id, s + 1 + (s[1] == '='), ORIGIN_FLAG, where, e);
        if (opt_table[id].kind == OPT_TEXT_MAYBE)
            return opt_set(o, id, maybe_next(argc, argv, i), ORIGIN_FLAG, where, e);
        if (*i + 1 >= argc) return error_set(e, ERR_USAGE, "%s needs a value: %s %s", where, where, opt_table[id].arg);
        return opt_set(o, id, argv[++*i], ORIGIN_FLAG, where, e);
    }
    return 0;
}

/* True if a word that is an argument by itself looks like a subcommand of another program: "hearth serve". */
static bool is_option_word(const char *word) {
    enum opt_id id = opt_find(word, strlen(word), NULL);
    return id != OPT_COUNT && !(opt_table[id].flags & OPT_HIDDEN);
}

/* Takes a verb and the model that it names. Returns the number of words taken: those behind them are the prompt. With
 * -m NAME, several words are a question to that model, as in "show me ...". */
static int take_verb(struct opts *o, char **words, int n, int *rc, struct error *e) {
    const struct opt_verb *v = opt_verb_find(words[0]);
    const bool has_model = o->v[OPT_MODEL].origin == ORIGIN_FLAG;
    const enum opt_id id = v && v->option ? opt_find(v->option, strlen(v->option), NULL) : OPT_MODEL;
    if (!v || (n > 1 && has_model && v->object != VERB_REFUSED)) return 0;
    const bool must = v->object == VERB_NAME || v->object == VERB_NAME_PROMPT, alone = v->object == VERB_ALONE,
               asks = v->object == VERB_NAME_PROMPT || v->object == VERB_MAY_NAME_PROMPT;
    if (v->object == VERB_REFUSED || (n == 1 && must && (!has_model || id == OPT_PULL)) || (n > 1 && alone) ||
        (n > 2 && !asks)) {
        *rc = error_set(e, ERR_USAGE, "%s; to ask a question that begins with '%s': -p \"%s ...\"", v->usage, v->word,
                        v->word);
        return n;
    }
    if (id == OPT_PULL) *rc = opt_set(o, OPT_PULL, words[1], ORIGIN_FLAG, v->word, e);
    else if (id != OPT_MODEL) *rc = opt_set(o, id, "yes", ORIGIN_FLAG, v->word, e);
    if (!*rc && n > 1 && id != OPT_PULL) *rc = opt_set(o, OPT_MODEL, words[1], ORIGIN_FLAG, v->word, e);
    return n > 2 ? 2 : n;
}

/* Arguments without a dash are the prompt. A single word that is the name of a file or an option is a mistake. */
static int set_words(struct opts *o, char **words, int n, bool literal, struct error *e) {
    struct buf text = {0};
    if (!n) return 0;
    if (n <= 2 && !literal && !strcmp(words[0], "help"))
        return opt_set(o, OPT_HELP, n > 1 ? words[1] : "", ORIGIN_FLAG, "help", e);
    if (n == 1 && !literal && !strcmp(words[0], "version"))
        return opt_set(o, OPT_VERSION, "yes", ORIGIN_FLAG, "version", e);
    int rc = 0, taken = literal ? 0 : take_verb(o, words, n, &rc, e);
    if (rc || taken == n) return rc;
    words += taken;
    n -= taken;
    literal |= taken > 0;
    if (o->v[OPT_PROMPT].text)
        return error_set(e, ERR_USAGE, "unexpected argument '%s': -p gives the prompt already; see hearth --help",
                         words[0]);
    if (n == 1 && !literal && is_option_word(words[0]))
        return error_set(e, ERR_USAGE, "'%s' is not a command; did you mean --%s? To ask a question of one word: -p %s",
                         words[0], words[0], words[0]);
    if (n == 1 && !literal && (file_exists(words[0]) || file_is_dir(words[0])))
        return error_set(e, ERR_USAGE,
                         "'%s' is a file or directory: -f attaches it to a question, -m opens it as a model", words[0]);
    for (int i = 0; i < n; i++) buf_fmt(&text, "%s%s", i ? " " : "", words[i]);
    rc = text.failed ? error_set(e, ERR_MEMORY, "no memory")
                     : opt_set(o, OPT_PROMPT, text.data, ORIGIN_FLAG, "the prompt", e);
    buf_free(&text);
    return rc;
}

static int parse_arguments(struct opts *o, int argc, char **argv, struct error *e) {
    int rc = 0, n = 0;
    bool literal = false;
    char **words = mem_alloc((size_t)(argc + 1) * sizeof *words);
    if (!words) return error_set(e, ERR_MEMORY, "no memory");
    for (int i = 1; i < argc && !rc; i++) {
        const char *a = argv[i];
        if (literal || a[0] != '-') words[n++] = argv[i];
        else if (!strcmp(a, "--")) literal = true;
        else if (a[1] == '-') rc = parse_long_option(o, argc, argv, &i, e);
        else if (a[1]) rc = parse_short_option(o, argc, argv, &i, e);
        else rc = opt_set(o, OPT_PROMPT, "-", ORIGIN_FLAG, "-", e);
    }
    if (!rc) rc = set_words(o, words, n, literal, e);
    mem_free(words);
    return rc;
}

enum opt_id opt_mode(const struct opts *o) {
    for (int id = 0; id < OPT_COUNT; id++)
        if (opt_table[id].flags & OPT_SELECTS_MODE && o->v[id].origin == ORIGIN_FLAG) return (enum opt_id)id;
    return OPT_COUNT;
}

/* Checks the options that constrain answers: at most one, for answers that are shown as they are. */
static int check_constraints(const struct opts *o, enum opt_id mode, struct error *e) {
    static const enum opt_id ids[] = {OPT_SCHEMA, OPT_JSON_OBJECT, OPT_REGEX, OPT_GRAMMAR, OPT_CHOICES},
                             excluded[] = {OPT_EXTRACT, OPT_UNTIL, OPT_TOOL, OPT_MCP, OPT_AGENT, OPT_THINK_LIMIT};
    enum opt_id given = OPT_COUNT, other = mode == OPT_BATCH ? OPT_COUNT : mode;
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        if (!o->v[ids[i]].text) continue;
        if (given != OPT_COUNT) other = ids[i];
        else given = ids[i];
    }
    for (size_t i = 0; i < sizeof excluded / sizeof *excluded && other == OPT_COUNT; i++)
        if (o->v[excluded[i]].text) other = excluded[i];
    if (given == OPT_COUNT || other == OPT_COUNT) return 0;
    return error_set(e, ERR_USAGE, "--%s and --%s cannot be combined", opt_table[given].name, opt_table[other].name);
}

/* Checks which options exclude or require others. */
static int check_combinations(const struct opts *o, struct error *e) {
    const struct opt_value *v = o->v;
    enum opt_id mode = opt_mode(o);
    if (v[OPT_HELP].on || v[OPT_VERSION].on) return 0;
    for (int id = mode + 1; id < OPT_COUNT && mode != OPT_COUNT; id++)
        if (opt_table[id].flags & OPT_SELECTS_MODE && v[id].origin == ORIGIN_FLAG)
            return error_set(e, ERR_USAGE, "--%s and --%s cannot be combined", opt_table[mode].name,
                             opt_table[id].name);
    static const enum opt_id for_prompts[] = {OPT_PROMPT, OPT_PROMPT_FILE, OPT_FILE,  OPT_EXTRACT,
                                              OPT_SAVE,   OPT_CONTINUE,    OPT_LAST,  OPT_TOOL,
                                              OPT_MCP,    OPT_AGENT,       OPT_ALLOW, OPT_LONG};
    for (size_t i = 0; i < sizeof for_prompts / sizeof *for_prompts && mode != OPT_COUNT; i++)
        if (v[for_prompts[i]].origin == ORIGIN_FLAG && !(mode == OPT_TOKENS && for_prompts[i] == OPT_FILE))
            return error_set(e, ERR_USAGE, "--%s and --%s cannot be combined%s", opt_table[mode].name,
                             opt_table[for_prompts[i]].name,
                             mode == OPT_SERVE && for_prompts[i] == OPT_PROMPT ? "; a port comes after --listen" : "");
    static const struct {
        enum opt_id a, b;
    } apart[] = {{OPT_JSON, OPT_JSON_LINES},    {OPT_QUIET, OPT_VERBOSE},
                 {OPT_RAW, OPT_SYSTEM},         {OPT_RAW, OPT_TEMPLATE},
                 {OPT_RAW, OPT_SAVE},           {OPT_RAW, OPT_CONTINUE},
                 {OPT_EXTRACT, OPT_JSON_LINES}, {OPT_LOGITS_OUT, OPT_IDS},
                 {OPT_RAW, OPT_LAST},           {OPT_LAST, OPT_CONTINUE},
                 {OPT_NO_SAVE, OPT_SAVE},       {OPT_PROMPT, OPT_PROMPT_FILE},
                 {OPT_RAW, OPT_TOOL},           {OPT_RAW, OPT_MCP},
                 {OPT_RAW, OPT_AGENT},          {OPT_RAW, OPT_LONG}};
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
        if (v[apart[i].a].origin == ORIGIN_FLAG && v[apart[i].b].origin == ORIGIN_FLAG)
            return error_set(e, ERR_USAGE, "--%s and --%s cannot be combined", opt_table[apart[i].a].name,
                             opt_table[apart[i].b].name);
    int rc = check_constraints(o, mode, e);
    if (rc) return rc;
    if (v[OPT_TOKENS].text && !v[OPT_IDS].on && !v[OPT_LOGITS_OUT].text)
        return error_set(e, ERR_USAGE, "--tokens needs --logits-out FILE or --ids");
    if (!v[OPT_TOKENS].text && (v[OPT_IDS].on || v[OPT_LOGITS_OUT].text))
        return error_set(e, ERR_USAGE, "--%s needs --tokens", v[OPT_IDS].on ? "ids" : "logits-out");
    if (v[OPT_SPECIAL].on && !v[OPT_TOKENIZE].on && !v[OPT_RAW].on)
        return error_set(e, ERR_USAGE, "--special needs --tokenize or --raw");
    if (mode != OPT_SERVE && v[OPT_STRICT].origin == ORIGIN_FLAG)
        return error_set(e, ERR_USAGE, "--strict needs --serve");
    if (mode != OPT_SERVE && v[OPT_IDLE].origin == ORIGIN_FLAG) return error_set(e, ERR_USAGE, "--idle needs --serve");
    if (mode != OPT_SERVE && (v[OPT_MAX_MODELS].origin == ORIGIN_FLAG || v[OPT_KEEP_ALIVE].origin == ORIGIN_FLAG))
        return error_set(e, ERR_USAGE, "--%s needs --serve",
                         v[OPT_MAX_MODELS].origin == ORIGIN_FLAG ? "max-models" : "keep-alive");
    if (mode != OPT_SERVE && mode != OPT_BATCH && v[OPT_PARALLEL].origin == ORIGIN_FLAG)
        return error_set(e, ERR_USAGE, "--parallel needs --serve or --batch");
    if (v[OPT_KL].text && mode != OPT_PERPLEXITY) return error_set(e, ERR_USAGE, "--kl needs --perplexity FILE");
    if (v[OPT_MEASURE].on && (mode != OPT_PLAN || strcmp(v[OPT_PLAN].text, "here") || v[OPT_ARCH].text))
        return error_set(e, ERR_USAGE, "--measure needs --plan here, and a model that is here (-m)");
    if (mode != OPT_PLAN && v[OPT_ARCH].text) return error_set(e, ERR_USAGE, "--arch needs --plan");
    if (v[OPT_VAR].n_items && !v[OPT_PROMPT_FILE].text) return error_set(e, ERR_USAGE, "--var needs --prompt-file");
    return 0;
}

int opt_parse(struct opts *o, int argc, char **argv, struct error *e) {
    int rc = parse_arguments(o, argc, argv, e);
    return rc ? rc : check_combinations(o, e);
}
