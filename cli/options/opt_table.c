/* The option table. Help texts are one line, with the default in parentheses unless it is obvious. */
#include "cli/options/opt.h"

#define MODEL   "Model"
#define PROMPT  "Prompt"
#define OUTPUT  "Output"
#define ANSWER  "Answer"
#define SESSION "Sessions"
#define SERVE   "Resident engine"
#define MACHINE "Machine"
#define INSPECT "Inspection (data on stdout, nothing else)"
#define MEASURE "Measuring"
#define OTHER   "Other"
#define SETTING OPT_SETTING
#define LIVE    (OPT_SETTING | OPT_LIVE)
#define MAX_CTX 16777216

const struct opt_def opt_table[OPT_COUNT] = {
    [OPT_MODEL] = {"model", 'm', OPT_TEXT, SETTING | OPT_FILE_PATH | OPT_EVERYDAY, MODEL, "DIR",
                   .help = "checkpoint directory, GGUF file, a name from --models, or URL[#MODEL] (built-in model)"},
    [OPT_MODEL_PATH] = {"model-path", 0, OPT_TEXT, SETTING | OPT_FILE_PATH, MODEL, "DIRS",
                        .help = "directories in which model names are looked up, separated by colons"},
    [OPT_CONTEXT] = {"context", 'c', OPT_INT, SETTING | OPT_EVERYDAY, MODEL, "N", .lo = 1, .hi = MAX_CTX,
                     .help = "context length in tokens (the model's limit)"},
    [OPT_TEMPLATE] = {"template", 0, OPT_TEXT, SETTING | OPT_FILE_PATH, MODEL, "FILE", .help = "chat template to use instead of the checkpoint's"},
    [OPT_MODELS] = {"models", 0, OPT_FLAG, OPT_SELECTS_MODE | OPT_EVERYDAY, MODEL,
                    .help = "list models in the model path and the Hugging Face cache; also with --json"},
    [OPT_USE] = {"use", 0, OPT_TEXT, OPT_SELECTS_MODE | OPT_EVERYDAY, MODEL, "NAME", .help = "make NAME the default model, in the configuration file"},
    [OPT_PRESET] = {"preset", 0, OPT_TEXT, SETTING | OPT_EVERYDAY, MODEL, "NAME", .help = "use the settings of section [NAME] in the configuration file"},
    [OPT_RAW] = {"raw", 0, OPT_FLAG, 0, MODEL, .help = "no chat template: send the text to the model unchanged"},

    [OPT_PROMPT] = {"prompt", 'p', OPT_TEXT, OPT_EVERYDAY, PROMPT, "TEXT", .help = "answer TEXT and exit; stdin may hold a document (-: read TEXT from stdin)"},
    [OPT_PROMPT_FILE] = {"prompt-file", 0, OPT_TEXT, OPT_FILE_PATH, PROMPT, "FILE", .help = "answer the text of FILE, with {{NAME}} replaced by --var"},
    [OPT_VAR] = {"var", 0, OPT_LIST, 0, PROMPT, "ASSIGNMENT", .help = "NAME=VALUE, the value of {{NAME}} in a prompt file; repeatable"},
    [OPT_FILE] = {"file", 'f', OPT_LIST, OPT_FILE_PATH | OPT_EVERYDAY, PROMPT, "FILE",
                  .help = "attach FILE as a document, or the text files of a directory; repeatable"},
    [OPT_NO_STDIN] = {"no-stdin", 0, OPT_FLAG, SETTING, PROMPT, .help = "do not read stdin, as ssh -n: for loops that read it themselves"},
    [OPT_SYSTEM] = {"system", 's', OPT_TEXT, LIVE | OPT_EVERYDAY, PROMPT, "TEXT", .help = "system prompt"},
    [OPT_BATCH] = {"batch", 0, OPT_TEXT, OPT_SELECTS_MODE | OPT_FILE_PATH | OPT_EVERYDAY, PROMPT, "FILE",
                   .help = "answer each line of a file of JSON or plain text, several at once"},

    [OPT_JSON] = {"json", 0, OPT_FLAG, OPT_EVERYDAY, OUTPUT, .help = "one JSON object on stdout"},
    [OPT_JSON_LINES] = {"json-lines", 0, OPT_FLAG, 0, OUTPUT, .help = "one JSON event per line while the answer is generated"},
    [OPT_EXTRACT] = {"extract", 0, OPT_FLAG, OPT_EVERYDAY, OUTPUT, .help = "print only the first code block of the answer"},
    [OPT_NO_STREAM] = {"no-stream", 0, OPT_FLAG, SETTING, OUTPUT, .help = "print the answer when it is complete"},
    [OPT_PLAIN] = {"plain", 0, OPT_FLAG, SETTING, OUTPUT, .help = "raw output; no wrapping, no styles"},
    [OPT_STATS] = {"stats", 0, OPT_FLAG, LIVE | OPT_EVERYDAY, OUTPUT, .help = "token counts and speeds on stderr after the answer"},
    [OPT_EXPLAIN] = {"explain", 0, OPT_FLAG, LIVE, OUTPUT, .help = "report on stderr why a mode was chosen"},
    [OPT_QUIET] = {"quiet", 'q', OPT_FLAG, SETTING | OPT_EVERYDAY, OUTPUT, .help = "no thinking, progress or notes on stderr"},
    [OPT_VERBOSE] = {"verbose", 'v', OPT_FLAG, SETTING, OUTPUT, .help = "more messages on stderr"},
    [OPT_COLOR] = {"color", 0, OPT_CHOICE, SETTING, OUTPUT, "WHEN", "auto always never", .def = "auto", .help = "colour on stdout and stderr"},
    [OPT_SHOW_THINKING] = {"show-thinking", 0, OPT_CHOICE, LIVE, OUTPUT, "WHEN", "auto always never", .def = "auto",
                           .help = "thinking of an answer; auto folds it in a chat"},
    [OPT_MARKDOWN] = {"markdown", 0, OPT_CHOICE, SETTING, OUTPUT, "HOW", "full marks off", .def = "marks",
                      .help = "styles on a terminal; full hides the marks, off is --plain"},
    [OPT_WIDTH] = {"width", 0, OPT_INT, SETTING, OUTPUT, "N", .lo = 0, .hi = 10000, .help = "most columns of text on a terminal; 0 is all of them (100)"},

    [OPT_MAX_TOKENS] = {"max-tokens", 'n', OPT_INT, LIVE | OPT_EVERYDAY, ANSWER, "N", .lo = 1, .hi = MAX_CTX,
                        .help = "stop the answer after N tokens (until the context is full)"},
    [OPT_TEMP] = {"temp", 0, OPT_NUM, LIVE | OPT_EVERYDAY, ANSWER, "T", .lo = 0, .hi = 100, .help = "temperature; 0 is greedy (model default)"},
    [OPT_TOP_P] = {"top-p", 0, OPT_NUM, LIVE, ANSWER, "P", .lo = 0, .hi = 1, .help = "sample from the likeliest tokens that add up to P (model default)"},
    [OPT_TOP_K] = {"top-k", 0, OPT_INT, LIVE, ANSWER, "K", .lo = 0, .hi = MAX_CTX, .help = "sample from the K likeliest tokens; 0 is off (model default)"},
    [OPT_MIN_P] = {"min-p", 0, OPT_NUM, LIVE, ANSWER, "P", .lo = 0, .hi = 1, .help = "drop tokens less likely than P times the likeliest (off)"},
    [OPT_REPEAT_PENALTY] = {"repeat-penalty", 0, OPT_NUM, LIVE, ANSWER, "R", .lo = 0.01, .hi = 100,
                            .help = "make used tokens less likely; 1 is off (model default)"},
    [OPT_SEED] = {"seed", 0, OPT_INT, LIVE, ANSWER, "N", .lo = 0, .hi = 9.2e18, .help = "random seed; the same seed gives the same text (a new one each time)"},
    [OPT_UNTIL] = {"until", 0, OPT_LIST, 0, ANSWER, "TEXT", .help = "end the answer before TEXT; repeatable"},
    [OPT_THINK] = {"think", 0, OPT_SWITCH, LIVE | OPT_EVERYDAY, ANSWER, .help = "let a reasoning model think first, or not (the template decides)"},
    [OPT_SCHEMA] = {"schema", 0, OPT_TEXT, OPT_FILE_PATH | OPT_EVERYDAY, ANSWER, "SCHEMA",
                    .help = "answer with JSON that is valid by a JSON schema, a file or its text"},
    [OPT_JSON_OBJECT] = {"json-object", 0, OPT_FLAG, 0, ANSWER, .help = "answer with a JSON object"},
    [OPT_REGEX] = {"regex", 0, OPT_TEXT, 0, ANSWER, "PATTERN", .help = "answer with a text that matches PATTERN as a whole"},
    [OPT_GRAMMAR] = {"grammar", 0, OPT_TEXT, OPT_FILE_PATH, ANSWER, "FILE", .help = "answer with a text of the GBNF grammar in FILE"},
    [OPT_CHOICES] = {"choices", 0, OPT_TEXT, 0, ANSWER, "LIST", .help = "answer with one of several texts, separated by commas"},

    [OPT_SAVE] = {"save", 0, OPT_TEXT, OPT_EVERYDAY, SESSION, "NAME", .help = "save the conversation as NAME"},
    [OPT_CONTINUE] = {"continue", 'r', OPT_TEXT_MAYBE, OPT_EVERYDAY, SESSION, "NAME",
                      .help = "continue the saved conversation NAME, or choose one; also --resume"},
    [OPT_LAST] = {"last", 0, OPT_FLAG, OPT_EVERYDAY, SESSION, .help = "continue the most recently saved conversation"},
    [OPT_NO_SAVE] = {"no-save", 0, OPT_FLAG, SETTING, SESSION, .help = "store nothing of this chat on disk, nor the input history"},
    [OPT_LIST_CHATS] = {"list", 0, OPT_FLAG, OPT_SELECTS_MODE | OPT_EVERYDAY, SESSION, .help = "list saved conversations, newest first; also with --json"},
    [OPT_DELETE] = {"delete", 0, OPT_TEXT, OPT_SELECTS_MODE, SESSION, "NAME", .help = "delete the saved conversation NAME"},

    [OPT_NO_ATTACH] = {"no-attach", 0, OPT_FLAG, SETTING, SERVE, .help = "open the model in this process, even if a resident engine is running"},
    [OPT_SERVE] = {"serve", 0, OPT_FLAG, OPT_SELECTS_MODE | OPT_EVERYDAY, SERVE, .help = "keep the model open and serve chat completions on a socket"},
    [OPT_LISTEN] = {"listen", 0, OPT_TEXT, 0, SERVE, "ADDRESS", .help = "with --serve: also listen on a port, as in 8080 or 127.0.0.1:8080; prints an API key"},
    [OPT_ALLOW_REMOTE] = {"allow-remote", 0, OPT_FLAG, 0, SERVE, .help = "with --listen: allow addresses that other machines reach; needs HEARTH_API_KEY"},
    [OPT_STRICT] = {"strict", 0, OPT_FLAG, SETTING, SERVE, .help = "with --serve: refuse requests that name another model"},
    [OPT_IDLE] = {"idle", 0, OPT_NUM, SETTING, SERVE, "MINUTES", .lo = 0, .hi = 1e6,
                  .help = "with --serve: exit after so many minutes without a request (never)"},
    [OPT_PARALLEL] = {"parallel", 0, OPT_INT, SETTING, SERVE, "N", .lo = 1, .hi = 256,
                      .help = "concurrent answers, with --serve (16) or --batch (6, or as many as pay off)"},
    [OPT_STATUS] = {"status", 0, OPT_FLAG, OPT_SELECTS_MODE, SERVE, .help = "show the state of the resident engine; also with --json"},
    [OPT_STOP] = {"stop", 0, OPT_FLAG, OPT_SELECTS_MODE, SERVE, .help = "stop the resident engine"},

    [OPT_THREADS] = {"threads", 't', OPT_INT, SETTING, MACHINE, "N", .lo = 1, .hi = 1024, .help = "CPU threads (number of physical cores)"},
    [OPT_CPU] = {"cpu", 0, OPT_CHOICE, SETTING, MACHINE, "LEVEL", "scalar avx2 avx512 amx", .help = "highest instruction set to use (best available)"},
    [OPT_GPUS] = {"gpus", 0, OPT_TEXT, SETTING, MACHINE, "LIST", .help = "0, 0,1, emu:N for N emulated ones, or none; no real GPU has run it yet"},
    [OPT_KV] = {"kv", 0, OPT_CHOICE, SETTING, MACHINE, "TYPE", "f32 bf16 fp8", .def = "bf16", .help = "number format of the KV cache"},
    [OPT_KV_CACHE] = {"kv-cache", 0, OPT_SIZE, SETTING, MACHINE, "SIZE", .help = "disk space for the KV cache of prompts, or off (a tenth of the free space)"},
    [OPT_PREFILL] = {"prefill", 0, OPT_CHOICE, SETTING, MACHINE, "MODE", "auto cpu blend slp dslp", .def = "auto", .help = "how prompts are prefilled"},
    [OPT_DECODE] = {"decode", 0, OPT_CHOICE, SETTING, MACHINE, "MODE", "auto cpu hybrid dual paged", .def = "auto", .help = "how answers are generated"},
    [OPT_SPLIT] = {"split", 0, OPT_CHOICE, SETTING, MACHINE, "POLICY", "auto host stream hybrimoe trimoe cut exact", .def = "auto",
                   .help = "which experts a device computes"},
    [OPT_EXPERT_CACHE] = {"expert-cache", 0, OPT_TEXT, SETTING, MACHINE, "SIZE", .def = "layers",
                          .help = "routed experts on a device: layers, N per layer, SIZE (4G), auto, off"},
    [OPT_EVICT] = {"evict", 0, OPT_CHOICE, SETTING, MACHINE, "POLICY", "auto lru lfu mrs ema lookahead", .def = "auto",
                   .help = "eviction policy of that cache"},
    [OPT_DRAFT] = {"draft", 0, OPT_CHOICE, SETTING | OPT_OR_PATH, MACHINE, "HOW", "auto none lookup mtp int4", .def = "auto",
                   .help = "speculative decoding, which does not change the text; the path of a small model, or"},
    [OPT_DRAFT_LEN] = {"draft-len", 0, OPT_INT, SETTING, MACHINE, "N", .lo = 1, .hi = 16, .help = "most drafted tokens at once (as many as pay off)"},
    [OPT_DETERMINISTIC] = {"deterministic", 0, OPT_FLAG, SETTING, MACHINE, .help = "choose modes by the calibration alone, not by later measurements"},
    [OPT_TRACE] = {"trace", 0, OPT_TEXT, OPT_FILE_PATH, MACHINE, "FILE", .help = "write a Chrome trace of what ran where and when"},
    [OPT_TRACE_ROUTING] = {"trace-routing", 0, OPT_TEXT, OPT_FILE_PATH, MACHINE, "FILE",
                           .help = "write the experts that each token chose, one line of JSON each"},
    [OPT_HUGEPAGES] = {"hugepages", 0, OPT_FLAG, SETTING, MACHINE, .help = "use 2 MB pages; weights are read into memory if they fit"},
    [OPT_TOPOLOGY] = {"topology", 0, OPT_TEXT, OPT_HIDDEN | OPT_FILE_PATH, MACHINE, "FILE", .help = "NUMA nodes to assume instead of this machine's"},
    [OPT_FORCE] = {"force", 0, OPT_FLAG, 0, MACHINE, .help = "continue even if memory seems insufficient"},

    [OPT_INSPECT] = {"inspect", 0, OPT_FLAG, OPT_SELECTS_MODE | OPT_EVERYDAY, INSPECT,
                     .help = "say what the checkpoint is and what would run where; details with -v or --json"},
    [OPT_VERIFY] = {"verify", 0, OPT_FLAG, OPT_SELECTS_MODE, INSPECT, .help = "read every tensor; exit 3 at the first bad one"},
    [OPT_TOKENIZE] = {"tokenize", 0, OPT_FLAG, OPT_SELECTS_MODE, INSPECT, .help = "convert text on stdin to ids, a JSON array on one line, without BOS"},
    [OPT_SPECIAL] = {"special", 0, OPT_FLAG, 0, INSPECT, .help = "recognise control tokens in the text (with --tokenize or --raw)"},
    [OPT_DETOKENIZE] = {"detokenize", 0, OPT_FLAG, OPT_SELECTS_MODE, INSPECT, .help = "convert a JSON array of ids on stdin to the exact bytes"},
    [OPT_RENDER] = {"render", 0, OPT_TEXT, OPT_SELECTS_MODE | OPT_FILE_PATH, INSPECT, "CONV",
                    .help = "print the prompt that the template renders from a JSON conversation"},
    [OPT_TOKENS] = {"tokens", 0, OPT_TEXT, OPT_SELECTS_MODE, INSPECT, "IDS",
                    .help = "run these ids, separated by commas, or @FILE; with --logits-out or --ids"},
    [OPT_LOGITS_OUT] = {"logits-out", 0, OPT_TEXT, OPT_FILE_PATH, INSPECT, "FILE", .help = "write float32 logits of every position"},
    [OPT_IDS] = {"ids", 0, OPT_FLAG, 0, INSPECT, .help = "print the continuation as a JSON array of ids (with -n)"},

    [OPT_BENCH] = {"bench", 0, OPT_FLAG_CHOICE, OPT_SELECTS_MODE, MEASURE, "kernels", "kernels",
                   .help = "measure the model, or every kernel, against this machine's limits"},
    [OPT_PLAN] = {"plan", 0, OPT_TEXT, OPT_SELECTS_MODE, MEASURE, "MACHINE",
                  .help = "predict the speeds of a described machine; --plan list shows the known ones"},
    [OPT_ARCH] = {"arch", 0, OPT_TEXT, 0, MEASURE, "NAME", .help = "plan for a published model without its files, as in qwen3-30b:q4_k_m (deepseek-v3)"},

    [OPT_PRINT_CONFIG] = {"print-config", 0, OPT_FLAG, OPT_SELECTS_MODE, OTHER, .help = "print every setting with its value and origin"},
    [OPT_COMPLETION] = {"completion", 0, OPT_CHOICE, OPT_SELECTS_MODE, OTHER, "SHELL", "bash zsh fish", .help = "print the completion script of a shell"},
    [OPT_HELP] = {"help", 'h', OPT_FLAG_CHOICE, OPT_SELECTS_MODE | OPT_EVERYDAY, OTHER, "all", "all", .help = "this text; all shows every option"},
    [OPT_VERSION] = {"version", 'V', OPT_FLAG, OPT_SELECTS_MODE | OPT_EVERYDAY, OTHER, .help = "the version; with -v also CPU level and build"},
};
