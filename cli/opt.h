#pragma once
/* All options of hearth in one table: parsing, help, completions, the configuration file, the environment and /set read
 * this table and nothing else. A value remembers where it came from: flag > HEARTH_* > configuration file > built-in. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/base/mem.h"

enum opt_id {
    OPT_MODEL,
    OPT_MODEL_PATH,
    OPT_CONTEXT,
    OPT_TEMPLATE,
    OPT_MODELS,
    OPT_RAW,
    OPT_PROMPT,
    OPT_FILE,
    OPT_SYSTEM,
    OPT_BATCH,
    OPT_JSON,
    OPT_JSON_LINES,
    OPT_EXTRACT,
    OPT_NO_STREAM,
    OPT_PLAIN,
    OPT_STATS,
    OPT_EXPLAIN,
    OPT_QUIET,
    OPT_VERBOSE,
    OPT_COLOR,
    OPT_MAX_TOKENS,
    OPT_TEMP,
    OPT_TOP_P,
    OPT_TOP_K,
    OPT_MIN_P,
    OPT_REPEAT_PENALTY,
    OPT_SEED,
    OPT_UNTIL,
    OPT_THINK,
    OPT_SAVE,
    OPT_CONTINUE,
    OPT_LAST,
    OPT_NO_SAVE,
    OPT_LIST_CHATS,
    OPT_DELETE,
    OPT_NO_ATTACH,
    OPT_SERVE,
    OPT_LISTEN,
    OPT_IDLE,
    OPT_PARALLEL,
    OPT_STATUS,
    OPT_STOP,
    OPT_THREADS,
    OPT_CPU,
    OPT_GPUS,
    OPT_KV,
    OPT_KV_CACHE,
    OPT_PREFILL,
    OPT_DECODE,
    OPT_SPLIT,
    OPT_DRAFT,
    OPT_DRAFT_LEN,
    OPT_DETERMINISTIC,
    OPT_EXPERT_CACHE,
    OPT_EVICT,
    OPT_TRACE,
    OPT_TRACE_ROUTING,
    OPT_HUGEPAGES,
    OPT_FORCE,
    OPT_TOPOLOGY,
    OPT_INSPECT,
    OPT_VERIFY,
    OPT_TOKENIZE,
    OPT_SPECIAL,
    OPT_DETOKENIZE,
    OPT_RENDER,
    OPT_TOKENS,
    OPT_LOGITS_OUT,
    OPT_IDS,
    OPT_BENCH,
    OPT_PLAN,
    OPT_ARCH,
    OPT_PRINT_CONFIG,
    OPT_COMPLETION,
    OPT_HELP,
    OPT_VERSION,
    OPT_COUNT
};

enum opt_kind {
    OPT_FLAG,   /* on or off; in a file: yes/no */
    OPT_SWITCH, /* --x and --no-x */
    OPT_TEXT,
    OPT_LIST,   /* repeatable text */
    OPT_SIZE,   /* bytes, K, M, G or T behind them, or off: integer 0 */
    OPT_INT,    /* lo..hi */
    OPT_NUM,    /* lo..hi */
    OPT_CHOICE, /* one of the words in choices */
    OPT_MAYBE,  /* a flag that may be followed by one of the words in choices */
};

enum {
    OPT_SETTING = 1, /* may stand in the configuration file and in HEARTH_NAME */
    OPT_LIVE = 2,    /* /set may change it in a running chat */
    OPT_HIDDEN = 4,  /* left out of --help */
    OPT_MODE = 8,    /* says what to do: only one of them */
    OPT_PATH = 16
}; /* completes to files */

struct opt_def {
    const char *name; /* long, without the dashes; the key of the configuration file */
    char letter;      /* 0: none */
    uint8_t kind, flags;
    const char *group, *arg, *choices; /* choices: words with blanks between */
    double lo, hi;
    const char *def;  /* built-in value that is filled in, or NULL */
    const char *help; /* one line; what happens without it in parentheses */
};
extern const struct opt_def opt_table[OPT_COUNT];

enum opt_origin { ORIGIN_NONE, ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENV, ORIGIN_FLAG, ORIGIN_CHAT };
struct opt_value {
    const char *text;   /* as given; NULL when unset */
    const char **items; /* OPT_LIST */
    size_t n_items, cap_items;
    double num;
    int64_t integer;
    bool on; /* flags; OPT_MAYBE too */
    uint8_t origin;
};
struct opts {
    struct opt_value v[OPT_COUNT];
    struct arena arena;
    char *config_path; /* the file that was read, NULL: none */
};

void opt_init(struct opts *o); /* built-in values */
void opt_free(struct opts *o);
/* Command line. ERR_USAGE with a text that suggests what was meant. */
int opt_parse(struct opts *o, int argc, char **argv, struct error *e);
/* HEARTH_NAME of each setting, then the configuration file; warn is called for what was not understood there. Neither
 * overrides what has a stronger origin. A bad value in either is ERR_USAGE that names the variable or the line. */
typedef void (*opt_warn)(void *ctx, const char *text);
int opt_environment(struct opts *o, opt_warn warn, void *ctx, struct error *e);
int opt_config(struct opts *o, opt_warn warn, void *ctx, struct error *e);
/* Checks and stores one value; where names its place in errors ("--temp", "HEARTH_TEMP", "FILE:3: temp"). */
int opt_set(struct opts *o, enum opt_id id, const char *text, enum opt_origin origin, const char *where, struct error *e);
/* The row of a long name (no dashes; '_' counts as '-'), or OPT_COUNT. negated is set for --no-x of a switch. */
enum opt_id opt_find(const char *name, size_t n, bool *negated);
enum opt_id opt_mode(const struct opts *o); /* the row flagged OPT_MODE that was given, or OPT_COUNT */

/* The nearest to a mistyped word of those that next gives until NULL; false when none is near. */
bool opt_nearest(const char *word, const char *(*next)(void *ctx), void *ctx, char *best, size_t cap);

void opt_help(struct buf *out);
void opt_print_config(const struct opts *o, bool json, struct buf *out);
/* shell: bash, zsh or fish. ERR_USAGE for another. */
int opt_completion(const char *shell, struct buf *out, struct error *e);
