#pragma once
/* The option table, the single source for parsing, help, completions, the configuration file, the environment and /set.
 * Each value records its origin; precedence: flag > preset > HEARTH_* > configuration file > built-in. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/mem.h"

enum opt_id {
    OPT_MODEL,
    OPT_MODEL_PATH,
    OPT_CONTEXT,
    OPT_IMAGE_TOKENS,
    OPT_TEMPLATE,
    OPT_MMPROJ,
    OPT_MODELS,
    OPT_PULL,
    OPT_USE,
    OPT_PRESET,
    OPT_RAW,
    OPT_PROMPT,
    OPT_PROMPT_FILE,
    OPT_VAR,
    OPT_FILE,
    OPT_NO_STDIN,
    OPT_LONG,
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
    OPT_SHOW_THINKING,
    OPT_MARKDOWN,
    OPT_WIDTH,
    OPT_MAX_TOKENS,
    OPT_TEMP,
    OPT_TOP_P,
    OPT_TOP_K,
    OPT_MIN_P,
    OPT_REPEAT_PENALTY,
    OPT_PRESENCE_PENALTY,
    OPT_FREQUENCY_PENALTY,
    OPT_DRY_MULTIPLIER,
    OPT_DRY_BASE,
    OPT_DRY_ALLOWED_LENGTH,
    OPT_DRY_PENALTY_LAST_N,
    OPT_DRY_SEQUENCE_BREAKERS,
    OPT_TOP_N_SIGMA,
    OPT_SEED,
    OPT_UNTIL,
    OPT_THINK,
    OPT_EFFORT,
    OPT_THINK_LIMIT,
    OPT_TEMPLATE_VAR,
    OPT_SCHEMA,
    OPT_JSON_OBJECT,
    OPT_REGEX,
    OPT_GRAMMAR,
    OPT_CHOICES,
    OPT_TOOL,
    OPT_MCP,
    OPT_AGENT,
    OPT_ALLOW,
    OPT_TOOL_CHOICE,
    OPT_MAX_CALLS,
    OPT_SAVE,
    OPT_CONTINUE,
    OPT_LAST,
    OPT_NO_SAVE,
    OPT_COMPACT_AT,
    OPT_LIST_CHATS,
    OPT_DELETE,
    OPT_NO_ATTACH,
    OPT_SERVE,
    OPT_LISTEN,
    OPT_PAGE,
    OPT_ALLOW_REMOTE,
    OPT_STRICT,
    OPT_IDLE,
    OPT_MAX_MODELS,
    OPT_KEEP_ALIVE,
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
    OPT_MAX_TPOT,
    OPT_DETERMINISTIC,
    OPT_EXPERT_CACHE,
    OPT_EVICT,
    OPT_TRACE,
    OPT_TRACE_ROUTING,
    OPT_TRACE_VALUES,
    OPT_HUGEPAGES,
    OPT_FORCE,
    OPT_TOPOLOGY,
    OPT_INSPECT,
    OPT_VERIFY,
    OPT_CHECK_GPUS,
    OPT_TOKENIZE,
    OPT_SPECIAL,
    OPT_DETOKENIZE,
    OPT_RENDER,
    OPT_TOKENS,
    OPT_LOGITS_OUT,
    OPT_IDS,
    OPT_BENCH,
    OPT_PERPLEXITY,
    OPT_KL,
    OPT_TUNE,
    OPT_PLAN,
    OPT_ARCH,
    OPT_MEASURE,
    OPT_PRINT_CONFIG,
    OPT_COMPLETION,
    OPT_COMPLETE,
    OPT_HELP,
    OPT_VERSION,
    OPT_COUNT
};

enum opt_kind {
    OPT_FLAG,   /* on or off; in a file: yes/no */
    OPT_SWITCH, /* --x and --no-x */
    OPT_TEXT,
    OPT_LIST, /* repeatable text; never a setting, nor live: opt_config_preset copies values, which must own nothing */
    OPT_SIZE, /* bytes with suffix K, M, G or T, or off: integer 0 */
    OPT_INT,
    OPT_NUM,
    OPT_CHOICE,      /* one of choices */
    OPT_FLAG_CHOICE, /* a flag that may be followed by one of choices */
    OPT_TEXT_MAYBE,  /* text that may be missing: empty then */
};

enum {
    OPT_SETTING = 1,      /* allowed in the configuration file and as HEARTH_NAME */
    OPT_LIVE = 2,         /* /set may change it in a running chat */
    OPT_HIDDEN = 4,       /* omitted from --help */
    OPT_SELECTS_MODE = 8, /* selects the mode: at most one */
    OPT_FILE_PATH = 16,   /* completes to files */
    OPT_EVERYDAY = 32,    /* shown by --help on a terminal; the others by --help all */
    OPT_OR_PATH = 64,     /* OPT_CHOICE: a text with a / is accepted too */
    OPT_OR_PERCENT = 128  /* OPT_CHOICE: a number from 1 to 100 is accepted too */
};

struct opt_def {
    const char *name; /* long, without the dashes; also the key in the configuration file */
    char letter;      /* 0: none */
    uint8_t kind, flags;
    const char *group, *arg, *choices; /* heading and placeholder in --help; choices: space-separated */
    double lo, hi;                     /* bounds of numbers */
    const char *def;                   /* built-in value, or NULL */
    const char *help;                  /* one line; the default in parentheses */
    const char *names;                 /* completes to what --complete prints for this word, or NULL */
};
extern const struct opt_def opt_table[OPT_COUNT];

enum opt_origin { ORIGIN_NONE, ORIGIN_DEFAULT, ORIGIN_FILE, ORIGIN_ENV, ORIGIN_PRESET, ORIGIN_FLAG, ORIGIN_CHAT };
struct opt_value {
    const char *text;   /* as given; NULL when unset */
    const char **items; /* OPT_LIST */
    size_t n_items, cap_items;
    double num;
    int64_t integer;
    bool on; /* flags; OPT_FLAG_CHOICE too */
    uint8_t origin;
};
struct opts {
    struct opt_value v[OPT_COUNT];
    struct arena arena;
    /* the model that HEARTH_MODEL or the configuration file sets, also when -m or /model selects another; NULL: none */
    const char *default_model;
    char *config_path;    /* the file that was read; NULL: none */
    const char **presets; /* [n_presets] names of the sections in that file */
    size_t n_presets, cap_presets;
};

void opt_init(struct opts *o); /* sets built-in values */
void opt_free(struct opts *o);
/* Parses the command line. ERR_USAGE with a suggestion. */
int opt_parse(struct opts *o, int argc, char **argv, struct error *e);
/* Read HEARTH_NAME of each setting, and the configuration file; warn is called for each unknown name. Neither overrides
 * a value of a stronger origin. A bad value is ERR_USAGE that names the variable or the line. */
typedef void (*opt_warn)(void *ctx, const char *text);
int opt_config_environment(struct opts *o, opt_warn warn, void *ctx, struct error *e);
int opt_config_file(struct opts *o, opt_warn warn, void *ctx, struct error *e);
/* Applies a preset, a section [NAME] of the configuration file, in a running chat: live settings and the model get its
 * values or else those of the file's general part. ERR_USAGE for an unknown name, with the known ones. */
int opt_config_preset(struct opts *o, const char *name, struct error *e);
/* Writes `key = value` into the general part of the configuration file in place of an earlier value. */
int opt_config_write(const char *key, const char *value, struct error *e);
/* Validates and stores one value; where is its place for error messages ("--temp", "HEARTH_TEMP", "FILE:3: temp"). */
int opt_set(struct opts *o, enum opt_id id, const char *text, enum opt_origin origin, const char *where,
            struct error *e);
/* Looks up a long name (no dashes; '_' counts as '-'); OPT_COUNT if unknown. *negated is set for --no-x of a switch. */
enum opt_id opt_find(const char *name, size_t n, bool *negated);
/* /set may change it; false for OPT_SYSTEM, which has a command, and OPT_COUNT */
bool opt_is_live(enum opt_id id);
enum opt_id opt_mode(const struct opts *o); /* the given option flagged OPT_SELECTS_MODE, or OPT_COUNT */

/* Returns the option that has the purpose of an option of this name in llama.cpp or Ollama, or NULL. */
const char *opt_elsewhere(const char *name);
/* Finds the word nearest to a mistyped one among those that next returns until NULL; false without a near match. */
bool opt_nearest(const char *word, const char *(*next)(void *ctx), void *ctx, char *best, size_t cap);

/* all: every option, otherwise the everyday ones. */
void opt_help_print(bool all, struct buf *out);
/* Prints the options whose name or text contains word. ERR_USAGE if there is none. */
int opt_help_search(const char *word, struct buf *out, struct error *e);
void opt_help_wrap(const struct buf *text, int cols, struct buf *out); /* breaks the lines of that text for a screen */
void opt_config_print(const struct opts *o, bool json, struct buf *out);
/* shell: bash, zsh or fish; ERR_USAGE for others. */
int opt_help_completion(const char *shell, struct buf *out, struct error *e);
