#include <string.h>

#include "engine/base/error.h"
#include "engine/base/mem.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_known.h"

/* Splits the stream of model output into text, thinking and tool calls by the markers that occur in the model's template. Bytes that may start a marker are
 * held back; all others pass at once. Thinking markers are dropped; tool-call markup is passed on to its parser. */

struct pair {
    const char *open, *close; /* close is NULL: up to the end of the answer */
    uint8_t part;
};
static const struct pair pairs[] = {
    {"<think>", "</think>", PART_THINKING}, /* DeepSeek, Qwen, GLM, Kimi K2 Thinking, MiniMax */
    {"◁think▷", "◁/think▷", PART_THINKING}, /* Kimi */
    {"<seed:think>", "</seed:think>", PART_THINKING},
    {"[THINK]", "[/THINK]", PART_THINKING},     /* Mistral */
    {"<tool_call>", "</tool_call>", PART_TOOL}, /* Qwen, GLM, Hermes */
    {"<seed:tool_call>", "</seed:tool_call>", PART_TOOL},
    {"<minimax:tool_call>", "</minimax:tool_call>", PART_TOOL},
    {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", PART_TOOL}, /* Kimi K2 */
    {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", PART_TOOL},             /* DeepSeek R1, V3, V3.1 */
    {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>", PART_TOOL},      /* V3.2 */
    {"<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", PART_TOOL},              /* V4 */
    {"[TOOL_CALLS]", NULL, PART_TOOL},
    {"<|python_tag|>", NULL, PART_TOOL}, /* Llama 3 */
    {"<|tool_call|>", "<|/tool_call|>", PART_TOOL},
};
/* gpt-oss puts the channel in a header: <|channel|>analysis<|message|> ... <|end|> */
enum { H_START, H_CHANNEL, H_CONSTRAIN, H_MESSAGE, H_END, H_RETURN, H_CALL, n_harmony };
static const char *const harmony[n_harmony] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"};

enum { n_pairs = sizeof pairs / sizeof *pairs, held_max = 64, header_max = 512 };
struct parts {
    bool use[n_pairs], harmony, header; /* header: between <|start|> or <|channel|> and <|message|> */
    uint8_t part;
    int inside; /* index of the open pair, or -1 */
    bool skip_newlines;
    char held[held_max];
    bool held_special[held_max];
    size_t n_held;
    char head[header_max];
    size_t n_head;
};

static bool contains(const char *s, size_t n, const char *what) { return memmem(s, n, what, strlen(what)) != NULL; }
static const char *last_of(const char *s, size_t n, const char *what) {
    size_t w = strlen(what);
    for (size_t i = n + 1; w <= n && i-- > w;)
        if (!memcmp(s + i - w, what, w)) return s + i - w;
    return NULL;
}

struct parts *parts_open(const struct chat *c, const char *tail, size_t n) {
    size_t m;
    const char *text = chat_source(c, &m);
    struct parts *p = mem_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->inside = -1;
    p->harmony = contains(text, m, "<|channel|>") && contains(text, m, "<|message|>");
    if (p->harmony) {
        const char *start = last_of(tail, n, harmony[H_START]), *message = last_of(tail, n, harmony[H_MESSAGE]);
        p->header = start && (!message || message < start);
        if (!p->header && message) {
            const char *channel = last_of(tail, (size_t)(message - tail), harmony[H_CHANNEL]);
            if (channel && contains(channel, (size_t)(message - channel), "analysis")) p->part = PART_THINKING;
        }
        return p;
    }
    for (int i = 0; i < n_pairs; i++) {
        const struct pair *k = &pairs[i];
        p->use[i] = contains(text, m, k->open) || (k->part == PART_THINKING && contains(text, m, k->close)); /* some prompts only close it */
        if (!p->use[i] || k->part != PART_THINKING) continue;
        size_t end = n, m2 = strlen(k->open); /* opened by the prompt if it ends with the marker and white space */
        while (end && strchr(" \t\r\n", tail[end - 1]) && tail[end - 1]) end--;
        if (end < m2 || memcmp(tail + end - m2, k->open, m2) != 0) continue;
        p->inside = i;
        p->part = PART_THINKING;
        p->skip_newlines = true;
    }
    return p;
}
void parts_close(struct parts **p) {
    mem_free(*p);
    *p = NULL;
}

/* ---- output: other control tokens are dropped, except inside tool markup ---- */
static int emit(struct parts *p, const char *s, const bool *special, size_t n, parts_fn fn, void *ctx) {
    for (size_t i = 0, run; i < n; i = run) {
        for (run = i + 1; run < n && special[run] == special[i]; run++) {
        }
        if (special[i] && p->part != PART_TOOL) continue;
        const char *t = s + i;
        size_t k = run - i;
        while (p->skip_newlines && k && (*t == '\n' || *t == '\r')) t++, k--;
        if (!k) continue;
        p->skip_newlines = false;
        int rc = fn(ctx, (enum part)p->part, t, k);
        if (rc) return rc;
    }
    return 0;
}
static int emit_marker(struct parts *p, const char *s, parts_fn fn, void *ctx) { return fn(ctx, PART_TOOL, s, strlen(s)); }

/* ---- markers ----
 * Sets *text to marker k, or NULL if it cannot occur in this state. Returns false past the last marker. */
static bool marker(const struct parts *p, int k, const char **text) {
    *text = NULL;
    if (p->harmony) {
        if (k >= n_harmony) return false;
        *text = harmony[k];
        return true;
    }
    if (k >= 2 * n_pairs) return false;
    const struct pair *pair = &pairs[k / 2];
    if (!p->use[k / 2]) return true;
    bool closing = k & 1;
    if (p->inside < 0) *text = !closing ? pair->open : pair->part == PART_THINKING ? pair->close : NULL;
    else if (p->inside == k / 2 && closing) *text = pair->close;
    return true;
}

static int header_done(struct parts *p, parts_fn fn, void *ctx) {
    const char *last = last_of(p->head, p->n_head, harmony[H_CHANNEL]);
    bool tool = contains(p->head, p->n_head, "to="), thought = last && contains(last, p->n_head - (size_t)(last - p->head), "analysis");
    p->part = tool ? PART_TOOL : thought ? PART_THINKING : PART_TEXT;
    p->header = false;
    if (!tool) return 0;
    int rc = fn(ctx, PART_TOOL, p->head, p->n_head); /* the header names the called function */
    return rc ? rc : emit_marker(p, harmony[H_MESSAGE], fn, ctx);
}
static void head_add(struct parts *p, const char *s, size_t n) {
    if (n > header_max - p->n_head) n = header_max - p->n_head;
    memcpy(p->head + p->n_head, s, n);
    p->n_head += n;
}
static int found(struct parts *p, int k, const char *text, parts_fn fn, void *ctx) {
    if (p->harmony) {
        if (k == H_MESSAGE) return header_done(p, fn, ctx);
        if (k == H_START || (k == H_CHANNEL && !p->header)) p->header = true, p->n_head = 0;
        if (p->header) {
            if (k != H_START) head_add(p, text, strlen(text));
            return 0;
        }
        bool tool = p->part == PART_TOOL;
        p->part = PART_TEXT;
        return tool && k == H_CALL ? emit_marker(p, text, fn, ctx) : 0;
    }
    const struct pair *pair = &pairs[k / 2];
    bool closing = k & 1;
    int rc = pair->part == PART_TOOL ? emit_marker(p, text, fn, ctx) : 0;
    p->inside = closing ? -1 : k / 2;
    p->part = closing ? PART_TEXT : pair->part;
    p->skip_newlines = pair->part == PART_THINKING;
    return rc;
}

/* Classifies held[i..): 1 a marker (*which, *text), 0 undecided, -1 not a marker. */
static int look(const struct parts *p, size_t i, int *which, const char **text) {
    size_t n = p->n_held - i;
    bool maybe = false;
    const char *t;
    *text = NULL;
    for (int k = 0; marker(p, k, &t); k++) {
        size_t m = t ? strlen(t) : 0;
        if (!t || memcmp(p->held + i, t, m < n ? m : n) != 0) continue;
        if (m > n) maybe = true;
        else if (!*text || m > strlen(*text)) *which = k, *text = t;
    }
    return maybe ? 0 : *text ? 1 : -1;
}
static int pass(struct parts *p, size_t from, size_t to, parts_fn fn, void *ctx) {
    if (to == from) return 0;
    if (!p->header) return emit(p, p->held + from, p->held_special + from, to - from, fn, ctx);
    head_add(p, p->held + from, to - from);
    return 0;
}
static int work(struct parts *p, bool last, parts_fn fn, void *ctx) {
    size_t from = 0, i = 0;
    int rc = 0, which = 0;
    const char *text;
    while (i < p->n_held && !rc) {
        int k = look(p, i, &which, &text);
        if (k == 0 && !last) break;
        if (k <= 0 && !text) {
            i++;
            continue;
        }
        rc = pass(p, from, i, fn, ctx);
        if (!rc) rc = found(p, which, text, fn, ctx);
        from = i += strlen(text);
    }
    if (!rc) rc = pass(p, from, i, fn, ctx);
    memmove(p->held, p->held + i, p->n_held - i);
    memmove(p->held_special, p->held_special + i, (p->n_held - i) * sizeof *p->held_special);
    p->n_held -= i;
    return rc;
}

int parts_add(struct parts *p, const char *data, size_t n, bool special, parts_fn fn, void *ctx) {
    int rc = 0;
    while (n && !rc) {
        size_t k = held_max - p->n_held < n ? held_max - p->n_held : n;
        memcpy(p->held + p->n_held, data, k);
        memset(p->held_special + p->n_held, special, k * sizeof *p->held_special);
        p->n_held += k;
        data += k;
        n -= k;
        rc = work(p, false, fn, ctx);
    }
    return rc;
}
int parts_flush(struct parts *p, parts_fn fn, void *ctx) {
    int rc = work(p, true, fn, ctx);
    if (!rc && p->header && p->n_head) { /* the answer ended inside a header: show it rather than lose it */
        p->header = false;
        p->part = PART_TEXT;
        rc = fn(ctx, PART_TEXT, p->head, p->n_head);
        p->n_head = 0;
    }
    return rc;
}
