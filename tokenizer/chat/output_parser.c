#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "tokenizer/chat/builtin_templates.h"
#include "tokenizer/chat/chat_template.h"

/* Splits the stream of model output into text, thinking and tool calls by the markers that occur in the model's
 * template. Bytes that may start a marker are held back; all others pass at once. Markers of thinking and of answers
 * are dropped; tool-call markup is passed on to its parser. */

struct marker_pair {
    const char *open, *close; /* close is NULL: up to the end of the answer */
    uint8_t kind;
    const char *also; /* another text of templates of models that write these; NULL: none */
    bool is_needed;   /* no other text is the answer */
};
static const struct marker_pair marker_pairs[] = {
    {"<think>", "</think>", OUTPUT_THINKING}, /* DeepSeek, Qwen, GLM, Kimi K2 Thinking, MiniMax */
    {"◁think▷", "◁/think▷", OUTPUT_THINKING}, /* Kimi */
    {"<seed:think>", "</seed:think>", OUTPUT_THINKING},
    {"<longcat_think>", "</longcat_think>", OUTPUT_THINKING},
    {"[THINK]", "[/THINK]", OUTPUT_THINKING},                                      /* Mistral */
    {"<think:opensource>", "</think:opensource>", OUTPUT_THINKING, ":opensource"}, /* Hunyuan 3 and 4 */
    {"<mm:think>", "</mm:think>", OUTPUT_THINKING},                                /* MiniMax-M3 */
    {"<|channel>thought", "<channel|>", OUTPUT_THINKING},                          /* Gemma 4 */
    {"<|START_THINKING|>", "<|END_THINKING|>", OUTPUT_THINKING},                   /* Cohere */
    {"[unused16]", "[unused17]", OUTPUT_THINKING, "[unused10]"},                   /* openPangu */
    {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", OUTPUT_THINKING},   /* Apriel */
    {"[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]", OUTPUT_TEXT},
    {"<|START_RESPONSE|>", "<|END_RESPONSE|>", OUTPUT_TEXT},
    {"<|START_TEXT|>", "<|END_TEXT|>", OUTPUT_TEXT},
    {"<tool_call>", "</tool_call>", OUTPUT_TOOL_CALL}, /* Qwen, GLM, Hermes */
    {"<seed:tool_call>", "</seed:tool_call>", OUTPUT_TOOL_CALL},
    {"<longcat_tool_call>", "</longcat_tool_call>", OUTPUT_TOOL_CALL},
    {"<tool_calls>", "</tool_calls>", OUTPUT_TOOL_CALL}, /* Hunyuan */
    {"<tool_calls:opensource>", "</tool_calls:opensource>", OUTPUT_TOOL_CALL, ":opensource"},
    /* M3; a template may join the mark and the tag */
    {"]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>", OUTPUT_TOOL_CALL, "]<]minimax[>["},
    {"<|tool_call>", "<tool_call|>", OUTPUT_TOOL_CALL},                                    /* Gemma 4 */
    {"<|START_ACTION|>", "<|END_ACTION|>", OUTPUT_TOOL_CALL},                              /* Cohere */
    {"<|tool_call_start|>", "<|tool_call_end|>", OUTPUT_TOOL_CALL, "<|tool_list_start|>"}, /* LFM2 */
    {"<dots_function_call>", "</dots_function_call>", OUTPUT_TOOL_CALL},
    {"<atem:function_calls>", "</atem:function_calls>", OUTPUT_TOOL_CALL}, /* Muse */
    {"<minimax:tool_call>", "</minimax:tool_call>", OUTPUT_TOOL_CALL},
    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", OUTPUT_TOOL_CALL}, /* Kimi K2 */
    {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", OUTPUT_TOOL_CALL},             /* DeepSeek R1, V3, V3.1 */
    {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", OUTPUT_TOOL_CALL},      /* V3.2 */
    {"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", OUTPUT_TOOL_CALL},              /* V4 */
    {"<｜DSML｜ calls>", "</｜DSML｜ calls>", OUTPUT_TOOL_CALL},                      /* V4.1 */
    {"<TOOLCALL>", "</TOOLCALL>", OUTPUT_TOOL_CALL},                                  /* Nemotron Nano 2 */
    {"<｜GCML｜tool_calls>", "</｜GCML｜tool_calls>", OUTPUT_TOOL_CALL},              /* GigaChat 3.5 */
    {"<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", OUTPUT_TOOL_CALL},             /* Step3 */
    {"[unused11]", "[unused12]", OUTPUT_TOOL_CALL, "[unused10]"},                     /* openPangu */
    {"[TOOL_CALLS]", NULL, OUTPUT_TOOL_CALL},
    {"<|function_call|>", NULL, OUTPUT_TOOL_CALL},                            /* GigaChat 3.1 */
    {"function call<|role_sep|>", NULL, OUTPUT_TOOL_CALL, "'function call'"}, /* GigaChat 3: the name of a role */
    {"<|python_tag|>", NULL, OUTPUT_TOOL_CALL},                               /* Llama 3 */
    {"<|python_start|>", "<|python_end|>", OUTPUT_TOOL_CALL},                 /* Llama 4 */
    {"<|tool_call|>", "<|/tool_call|>", OUTPUT_TOOL_CALL},
    /* Kimi K3, which puts the answer between markers, too */
    {"<|open|>think<|sep|>", "<|close|>think<|sep|>", OUTPUT_THINKING, "<|open|>"},
    {"<|open|>response<|sep|>", "<|close|>response<|sep|>", OUTPUT_TEXT, "<|open|>", .is_needed = true},
    {"<|open|>tools<|sep|>", "<|close|>tools<|sep|>", OUTPUT_TOOL_CALL, "<|open|>"},
    {"<|close|>message<|sep|>", NULL, OUTPUT_TEXT, "<|open|>"},
};
/* Models that begin each message with a header, which says what it is: gpt-oss (<|channel|>analysis<|message|> ...
 * <|end|>), Muse (to=self<|message|> ...
 * <|eom|>), Inkling (a tool's name, then a mark of the kind of content) and Solar Open (assistant, then such a
 * mark). */
enum header_role { HEADER_START, HEADER_PART, HEADER_END, MESSAGE_END, CALL_END };
struct header_marker {
    const char *text;
    uint8_t role;
    uint8_t kind; /* of HEADER_END, if the marker says it */
};
enum header_form { FORM_NONE, FORM_HARMONY, FORM_MUSE, FORM_INKLING, FORM_SOLAR };
static const struct header_marker header_markers[][8] = {
    [FORM_HARMONY] = {{"<|start|>", HEADER_START, 0},
                      {"<|channel|>", HEADER_PART, 0},
                      {"<|constrain|>", HEADER_PART, 0},
                      {"<|message|>", HEADER_END, 0},
                      {"<|end|>", MESSAGE_END, 0},
                      {"<|return|>", MESSAGE_END, 0},
                      {"<|call|>", CALL_END, 0}},
    [FORM_MUSE] = {{"<|start|>", HEADER_START, 0},
                   {"<|message|>", HEADER_END, 0},
                   {"<|eom|>", MESSAGE_END, 0},
                   {"<|eot|>", MESSAGE_END, 0}},
    [FORM_INKLING] = {{"<|message_model|>", HEADER_START, 0},
                      {"<|content_text|>", HEADER_END, OUTPUT_TEXT},
                      {"<|content_thinking|>", HEADER_END, OUTPUT_THINKING},
                      {"<|content_invoke_tool_json|>", HEADER_END, OUTPUT_TOOL_CALL},
                      {"<|end_message|>", MESSAGE_END, 0}},
    [FORM_SOLAR] = {{"<|begin|>", HEADER_START, 0},
                    {"<|content|>", HEADER_END, OUTPUT_TEXT},
                    {"<|think|>", HEADER_END, OUTPUT_THINKING},
                    {"<|tool_calls|>", HEADER_END, OUTPUT_TOOL_CALL},
                    {"<|end|>", MESSAGE_END, 0},
                    {"<|calls|>", CALL_END, 0}},
};
static const char channel_marker[] = "<|channel|>";

enum { N_PAIRS = sizeof marker_pairs / sizeof *marker_pairs, HELD_MAX = 64, HEADER_MAX = 512 };
struct output_parser {
    bool enabled[N_PAIRS];
    bool marks_answer;           /* an answer begins with a marker */
    uint8_t form;                /* enum header_form */
    bool in_header, has_message; /* with headers: in one, in a message */
    uint8_t kind;
    int open_pair;    /* index of the open pair, or -1 */
    bool begins_line; /* the bytes before `held` end a line or a marker */
    bool skip_newlines;
    char held[HELD_MAX];
    bool held_special[HELD_MAX];
    size_t n_held;
    char header_text[HEADER_MAX];
    size_t n_header_text;
};

static bool contains(const char *s, size_t n, const char *what) { return memmem(s, n, what, strlen(what)) != NULL; }
/* Whether a template has a marker; DeepSeek's and GigaChat's templates join its parts: '<' ~ dsml ~ 'tool_calls>'. */
static bool has_marker(const char *text, size_t n, const char *marker) {
    static const char *const marks[] = {"｜DSML｜", "｜GCML｜"};
    bool has = contains(text, n, marker);
    for (size_t i = 0; i < sizeof marks / sizeof *marks && !has; i++) {
        const char *at = strstr(marker, marks[i]);
        has = at && contains(text, n, marks[i]) && contains(text, n, at + strlen(marks[i]));
    }
    return has;
}
static const char *find_last(const char *s, size_t n, const char *what) {
    size_t w = strlen(what);
    for (size_t i = n + 1; w <= n && i-- > w;)
        if (!memcmp(s + i - w, what, w)) return s + i - w;
    return NULL;
}

static uint8_t form_of(const char *text, size_t n) {
    if (contains(text, n, "<|content_thinking|>") || contains(text, n, "<|content_invoke_tool_json|>"))
        return FORM_INKLING;
    if (contains(text, n, "<|begin|>assistant<|tool_calls|>")) return FORM_SOLAR;
    if (!contains(text, n, "<|message|>")) return FORM_NONE;
    return contains(text, n, channel_marker) ? FORM_HARMONY : contains(text, n, "<|eom|>") ? FORM_MUSE : FORM_NONE;
}

/* Whether a header (without its markers) begins a call, or else thinking. */
static enum output_kind header_kind(uint8_t form, const char *s, size_t n) {
    const char *to = find_last(s, n, "to="), *channel = find_last(s, n, channel_marker);
    if (form == FORM_HARMONY)
        return to                                                                    ? OUTPUT_TOOL_CALL
               : channel && contains(channel, (size_t)(s + n - channel), "analysis") ? OUTPUT_THINKING
                                                                                     : OUTPUT_TEXT;
    const size_t rest = to ? (size_t)(s + n - to) : 0;
    if (!to || contains(to, rest, "to=user") || contains(to, rest, "to=commentary")) return OUTPUT_TEXT;
    return contains(to, rest, "to=self") ? OUTPUT_THINKING : OUTPUT_TOOL_CALL;
}

/* Whether the marker that ends a header says what the message is. */
static bool has_kinds(const struct output_parser *p) { return p->form == FORM_INKLING || p->form == FORM_SOLAR; }

/* Sets the state after the end of the prompt. */
static void open_header(struct output_parser *p, const char *tail, size_t n) {
    const struct header_marker *markers = header_markers[p->form], *end = NULL;
    const char *start = NULL, *message = NULL;
    for (int k = 0; markers[k].text; k++) {
        const char *last = find_last(tail, n, markers[k].text);
        if (markers[k].role == HEADER_START) start = last;
        if (markers[k].role == HEADER_END && last && last > (message ? message : last - 1))
            message = last, end = &markers[k];
    }
    p->in_header = start && (!message || message < start);
    if (p->in_header || !message) return;
    const char *from = start && start < message ? start : tail;
    const enum output_kind kind =
        has_kinds(p) ? (enum output_kind)end->kind : header_kind(p->form, from, (size_t)(message - from));
    if (kind == OUTPUT_THINKING) p->kind = OUTPUT_THINKING;
    p->has_message = true;
}

struct output_parser *output_parser_open(const struct chat_template *c, const char *tail, size_t n) {
    size_t m;
    const char *text = chat_template_source(c, &m);
    struct output_parser *p = mem_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->open_pair = -1;
    p->begins_line = true;
    p->form = form_of(text, m);
    if (p->form) {
        open_header(p, tail, n);
        return p;
    }
    for (int i = 0; i < N_PAIRS; i++) {
        const struct marker_pair *k = &marker_pairs[i];
        /* templates may only close it */
        p->enabled[i] = has_marker(text, m, k->open) || (k->kind == OUTPUT_THINKING && contains(text, m, k->close)) ||
                        (k->also && contains(text, m, k->also));
        p->marks_answer |= p->enabled[i] && k->is_needed;
        if (!p->enabled[i] || (k->kind != OUTPUT_THINKING && !k->is_needed)) continue;
        size_t end = n, n_open = strlen(k->open); /* opened by the prompt if it ends with the marker and white space */
        while (end && strchr(" \t\r\n", tail[end - 1]) && tail[end - 1]) end--;
        if (end < n_open || memcmp(tail + end - n_open, k->open, n_open) != 0) continue;
        p->open_pair = i;
        p->kind = k->kind;
        p->skip_newlines = k->kind == OUTPUT_THINKING;
    }
    return p;
}
void output_parser_close(struct output_parser **p) {
    mem_free(*p);
    *p = NULL;
}

/* --- output: other control tokens are dropped, except inside tool markup ---------------------- */
static int emit_text(struct output_parser *p, const char *s, const bool *special, size_t n, output_parser_fn fn,
                     void *ctx) {
    for (size_t i = 0, run; i < n; i = run) {
        for (run = i + 1; run < n && special[run] == special[i]; run++) {
        }
        if (special[i] && p->kind != OUTPUT_TOOL_CALL) continue;
        const char *t = s + i;
        size_t k = run - i;
        while (p->skip_newlines && k && (*t == '\n' || *t == '\r')) t++, k--;
        if (!k) continue;
        p->skip_newlines = false;
        int rc = fn(ctx, (enum output_kind)p->kind, t, k);
        if (rc) return rc;
    }
    return 0;
}
static int emit_marker(const char *s, output_parser_fn fn, void *ctx) {
    return fn(ctx, OUTPUT_TOOL_CALL, s, strlen(s));
}

/* ---- markers ----
 * Sets *text to marker k, or NULL if it cannot occur in this state. Returns false past the last marker. A call also
 * ends thinking that the model has not closed; may_interrupt: the position is one where it may. */
static bool possible_marker(const struct output_parser *p, int k, bool may_interrupt, const char **text) {
    *text = NULL;
    if (p->form) return (*text = header_markers[p->form][k].text) != NULL;
    if (k >= 2 * N_PAIRS) return false;
    const struct marker_pair *pair = &marker_pairs[k / 2];
    if (!p->enabled[k / 2]) return true;
    bool closing = k & 1;
    if (p->open_pair < 0) *text = !closing ? pair->open : pair->kind != OUTPUT_TOOL_CALL ? pair->close : NULL;
    else if (p->open_pair == k / 2 && closing) *text = pair->close;
    else if (may_interrupt && marker_pairs[p->open_pair].kind == OUTPUT_THINKING && pair->kind == OUTPUT_TOOL_CALL &&
             !closing)
        *text = pair->open;
    return true;
}

static int finish_header(struct output_parser *p, const struct header_marker *marker, output_parser_fn fn, void *ctx) {
    p->kind = has_kinds(p) ? marker->kind : (uint8_t)header_kind(p->form, p->header_text, p->n_header_text);
    p->in_header = false;
    p->has_message = true;
    /* Muse's calls have tags of their own */
    if (p->kind != OUTPUT_TOOL_CALL || p->form == FORM_MUSE) return 0;
    /* the header names the called function */
    int rc = p->form == FORM_HARMONY ? fn(ctx, OUTPUT_TOOL_CALL, p->header_text, p->n_header_text) : 0;
    return rc ? rc : emit_marker(marker->text, fn, ctx);
}
static void append_header(struct output_parser *p, const char *s, size_t n) {
    if (n > HEADER_MAX - p->n_header_text) n = HEADER_MAX - p->n_header_text;
    memcpy(p->header_text + p->n_header_text, s, n);
    p->n_header_text += n;
}
static int handle_marker(struct output_parser *p, int k, const char *text, output_parser_fn fn, void *ctx) {
    if (p->form) {
        const struct header_marker *marker = &header_markers[p->form][k];
        if (marker->role == HEADER_END) return finish_header(p, marker, fn, ctx);
        if (marker->role == HEADER_START ||
            (marker->role == HEADER_PART && !p->in_header && !strcmp(text, channel_marker)))
            p->in_header = true, p->n_header_text = 0;
        if (p->in_header) {
            if (marker->role != HEADER_START) append_header(p, text, strlen(text));
            return 0;
        }
        const bool was_call = p->kind == OUTPUT_TOOL_CALL;
        p->kind = OUTPUT_TEXT;
        p->has_message = false;
        return was_call && (marker->role == CALL_END || p->form == FORM_INKLING) ? emit_marker(text, fn, ctx) : 0;
    }
    const struct marker_pair *pair = &marker_pairs[k / 2];
    bool closing = k & 1;
    int rc = pair->kind == OUTPUT_TOOL_CALL ? emit_marker(text, fn, ctx) : 0;
    p->open_pair = closing ? -1 : k / 2;
    p->kind = closing ? OUTPUT_TEXT : pair->kind;
    p->skip_newlines = pair->kind != OUTPUT_TOOL_CALL;
    return rc;
}

/* Classifies held[i..): 1: it begins with a marker (*which, *text); 0: it may become one, or a longer one than *text
 * (NULL: none yet); -1: no marker. */
static int match_marker(const struct output_parser *p, size_t i, int *which, const char **text) {
    size_t n = p->n_held - i;
    bool is_undecided = false;
    /* thinking may quote a marker elsewhere */
    const bool may_interrupt = p->held_special[i] || (i ? p->held[i - 1] == '\n' : p->begins_line);
    const char *t;
    *text = NULL;
    for (int k = 0; possible_marker(p, k, may_interrupt, &t); k++) {
        size_t m = t ? strlen(t) : 0;
        if (!t || memcmp(p->held + i, t, m < n ? m : n) != 0) continue;
        if (m > n) is_undecided = true;
        else if (!*text || m > strlen(*text)) *which = k, *text = t;
    }
    return is_undecided ? 0 : *text ? 1 : -1;
}
static int emit_held(struct output_parser *p, size_t from, size_t to, output_parser_fn fn, void *ctx) {
    if (to == from) return 0;
    if (!p->in_header) return emit_text(p, p->held + from, p->held_special + from, to - from, fn, ctx);
    append_header(p, p->held + from, to - from);
    return 0;
}
static int process_held(struct output_parser *p, bool last, output_parser_fn fn, void *ctx) {
    size_t from = 0, i = 0;
    int rc = 0, which = 0;
    const char *text;
    while (i < p->n_held && !rc) {
        int k = match_marker(p, i, &which, &text);
        if (k == 0 && !last) break;
        if (k <= 0 && !text) {
            i++;
            continue;
        }
        rc = emit_held(p, from, i, fn, ctx);
        if (!rc) rc = handle_marker(p, which, text, fn, ctx);
        from = i += strlen(text);
        p->begins_line = true;
    }
    if (!rc) rc = emit_held(p, from, i, fn, ctx);
    if (i > from) p->begins_line = p->held[i - 1] == '\n';
    memmove(p->held, p->held + i, p->n_held - i);
    memmove(p->held_special, p->held_special + i, (p->n_held - i) * sizeof *p->held_special);
    p->n_held -= i;
    return rc;
}

int output_parser_feed(struct output_parser *p, const char *data, size_t n, bool is_special, output_parser_fn fn,
                       void *ctx) {
    int rc = 0;
    while (n && !rc) {
        size_t k = HELD_MAX - p->n_held < n ? HELD_MAX - p->n_held : n;
        /* a long token: do not part a character */
        while (k > 3 && k < n && ((unsigned char)data[k] & 0xC0) == 0x80) k--;
        memcpy(p->held + p->n_held, data, k);
        memset(p->held_special + p->n_held, is_special, k * sizeof *p->held_special);
        p->n_held += k;
        data += k;
        n -= k;
        rc = process_held(p, false, fn, ctx);
    }
    return rc;
}
bool output_parser_in_answer(const struct output_parser *p) {
    if (p->kind != OUTPUT_TEXT || p->in_header) return false;
    const struct marker_pair *open = p->open_pair < 0 ? NULL : &marker_pairs[p->open_pair];
    if (p->form) return p->has_message;
    return open ? open->is_needed || (!p->marks_answer && open->kind == OUTPUT_TEXT) : !p->marks_answer;
}

bool output_parser_in_header(const struct output_parser *p) { return p->in_header; }

bool output_parser_thinking(const struct output_parser *p, int i, const char **open, const char **close) {
    for (int k = 0; k < N_PAIRS; k++) {
        if (!p->enabled[k] || marker_pairs[k].kind != OUTPUT_THINKING || i-- > 0) continue;
        *open = marker_pairs[k].open, *close = marker_pairs[k].close;
        return true;
    }
    return false;
}

bool output_parser_is_empty(const struct output_parser *p) { return !p->n_held && !(p->in_header && p->n_header_text); }

int output_parser_flush(struct output_parser *p, output_parser_fn fn, void *ctx) {
    int rc = process_held(p, true, fn, ctx);
    if (!rc && p->in_header && p->n_header_text) { /* the answer ended inside a header: show it rather than lose it */
        p->in_header = false;
        p->kind = OUTPUT_TEXT;
        rc = fn(ctx, OUTPUT_TEXT, p->header_text, p->n_header_text);
        p->n_header_text = 0;
    }
    return rc;
}
