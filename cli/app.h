#pragma once
/* State shared by all modes: options, streams, and the opened model (open.h). */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/options/opt.h"
#include "cli/options/paths.h"
#include "cli/turn/answer_printer.h"
#include "engine/engine.h"
#include "tokenizer/chat/chat_template.h"
#include "tokenizer/grammar/source.h"
#include "tokenizer/grammar/token_trie.h"

struct app {
    struct opts opts;
    bool tty_in, tty_out, tty_err;
    bool color_out, color_err;
    struct answer_style answer_style;
    char model_dir[PATHS_MAX];     /* the model's directory or GGUF file, or "ember:" */
    char model_name[304];          /* what people call it (model_path_name) */
    char gpus[160];                /* holds the list that turn/gpus.h returns for --gpus auto and by default */
    bool has_unused_gpus;          /* this machine has GPUs that hearth does not use by default */
    char gpu_trouble[400];         /* "": none; why a GPU cannot be used, and what to do */
    bool gpus_failed;              /* GPUs that were chosen could not be opened */
    const struct backend *backend; /* the engine in use: this process, attached or remote */
    struct engine_client *clients; /* list of open clients */
    /* constrains answers, if an option asks for it (constraint_of_options); text NULL: unconstrained */
    struct grammar_source answer_source;
    struct source_grammars answer_grammars; /* its compiled form */
    struct buf answer_text;                 /* owns its text */
    struct tool_set *tools;                 /* tools that the model may call; NULL: none */
    struct buf tool_list; /* their definitions, as `tools` of a chat-completions request; empty: none */
    /* identifies the experts pinned to devices, and what they were in the saved conversation; 0: none, or unknown */
    uint64_t pinned, saved_pinned;
    const struct engine_info *info; /* describes the engine in use; NULL before it is open */
    /* of this process's engine; NULL when another engine answers */
    struct tokenizer *tokenizer;
    struct chat_template *template; /* NULL with --raw */
    const char *noted_effort;       /* value of --effort about which a note was printed */
    bool noted_vars;                /* notes about --template-var were printed */
    bool noted_limit;               /* a note about --think-limit was printed */
    struct topic *topic;            /* built-in model only; NULL before the first prompt */
    struct engine *engine;
    struct token_trie *trie;         /* the tokenizer's vocabulary by bytes; NULL before the first constrained answer */
    const atomic_bool *stop_opening; /* opening the engine ends when it becomes true; NULL: it does not */
    struct remote *remote;           /* connection to an attached or remote engine; NULL: none */
};
