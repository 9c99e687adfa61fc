/* The table of the forms of tool calls, and lists of calls. */
#include "tokenizer/chat/tool_calls.h"

#include "tokenizer/chat/tool_calls_internal.h"

/* The form of a markup is that of the mark that comes first in it. */
static const struct form {
    /* around each call, and before its arguments; close is NULL: `parse` takes all of the markup */
    const char *open, *head, *close;
    tool_calls_parser *parse;
} forms[] = {
    {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", tool_calls_parse_deepseek},
    {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", tool_calls_parse_kimi},
    {"<|open|>call ", NULL, NULL, tool_calls_parse_xtml},
    {"<｜DSML｜invoke", NULL, NULL, tool_calls_parse_marked_invokes},
    {"<｜DSML｜ invoke", NULL, NULL, tool_calls_parse_spaced_invokes},
    {"<｜GCML｜invoke", NULL, NULL, tool_calls_parse_gcml_invokes},
    {"<｜tool_calls_begin｜>", NULL, NULL, tool_calls_parse_step_invokes},
    {"<minimax:tool_call>", NULL, NULL, tool_calls_parse_plain_invokes},
    {"<|message|>", NULL, NULL, tool_calls_parse_gpt_oss},
    {"<tool_call>", NULL, "</tool_call>", tool_calls_parse_tagged},
    {"<seed:tool_call>", NULL, "</seed:tool_call>", tool_calls_parse_seed},
    {"<longcat_tool_call>", NULL, "</longcat_tool_call>", tool_calls_parse_tagged},
    {"<tool_calls>", NULL, "</tool_calls>", tool_calls_parse_hunyuan},
    {"<tool_calls:opensource>", NULL, "</tool_calls:opensource>", tool_calls_parse_hunyuan_open},
    {"<|python_start|>", NULL, "<|python_end|>", tool_calls_parse_python},
    {"<|tool_call_start|>", NULL, "<|tool_call_end|>", tool_calls_parse_python},
    {"<|tool_call>", NULL, "<tool_call|>", tool_calls_parse_gemma},
    {"<|START_ACTION|>", NULL, "<|END_ACTION|>", tool_calls_parse_json},              /* Cohere */
    {"<|content_invoke_tool_json|>", NULL, "<|end_message|>", tool_calls_parse_json}, /* Inkling */
    {MINIMAX_MARK "<tool_call>", NULL, NULL, tool_calls_parse_minimax_m3},
    {"<dots_function_call>", NULL, NULL, tool_calls_parse_plain_invokes},
    {"<atem:function_calls>", NULL, NULL, tool_calls_parse_atem_invokes}, /* Muse */
    {"<|tool_call|>", NULL, "<|/tool_call|>", tool_calls_parse_json},
    {"<TOOLCALL>", NULL, "</TOOLCALL>", tool_calls_parse_json}, /* Nemotron Nano 2 */
    {"[unused11]", NULL, "[unused12]", tool_calls_parse_json},  /* openPangu */
    {"[TOOL_CALLS]", NULL, NULL, tool_calls_parse_mistral},
    {"<|tool_call:begin|>", "<|tool_call:args|>", "<|tool_call:end|>", tool_calls_parse_solar},
    {"<|function_call|>", NULL, NULL, tool_calls_parse_gigachat},
    {"function call<|role_sep|>", NULL, NULL, tool_calls_parse_gigachat},
    {"<|python_tag|>", NULL, NULL, tool_calls_parse_llama},
};

static int parse_markup(struct markup_range t, const struct json *tools, struct tool_calls *c) {
    if (markup_starts_with(t, "{")) return tool_calls_parse_lines(c, t, tools);
    const struct form *f = NULL;
    const char *first = NULL;
    struct markup_range in;
    int rc = ERR_MODEL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *at = markup_find(t, forms[i].open);
        if (at && (!first || at < first)) first = at, f = &forms[i];
    }
    if (!f || !f->close) return f ? f->parse(c, t, tools) : ERR_MODEL;
    while (markup_take_call(&t, f->open, f->head, f->close, &in))
        if ((rc = f->parse(c, in, tools))) return rc;
    return rc;
}

int tool_calls_parse(const char *s, size_t n, const struct json *tools, struct tool_calls *out) {
    size_t n_before = out->n;
    int rc = parse_markup((struct markup_range){s, s + n}, tools, out);
    if (rc) tool_calls_truncate(out, n_before);
    return rc;
}

int tool_calls_copy(const struct tool_calls *from, struct tool_calls *to) {
    const size_t n_before = to->n;
    for (size_t i = 0; i < from->n; i++) {
        const struct tool_call *k = &from->v[i];
        if (mem_grow(&to->v, &to->cap, to->n + 1, sizeof *to->v)) return tool_calls_truncate(to, n_before), ERR_MEMORY;
        struct tool_call *copy = &to->v[to->n++];
        *copy = (struct tool_call){0};
        buf_add(&copy->name, k->name.data ? k->name.data : "", k->name.len);
        buf_add(&copy->arguments, k->arguments.data ? k->arguments.data : "", k->arguments.len);
        buf_add(&copy->id, k->id.data ? k->id.data : "", k->id.len);
        if (copy->name.failed || copy->arguments.failed || copy->id.failed)
            return tool_calls_truncate(to, n_before), ERR_MEMORY;
    }
    return 0;
}

void tool_calls_truncate(struct tool_calls *c, size_t n) {
    while (c->n > n) {
        struct tool_call *k = &c->v[--c->n];
        buf_free(&k->id);
        buf_free(&k->name);
        buf_free(&k->arguments);
    }
}

void tool_calls_free(struct tool_calls *c) {
    tool_calls_truncate(c, 0);
    mem_free(c->v);
    *c = (struct tool_calls){0};
}
