/* Splits thinking, answer and tool calls, however the stream is divided. */
#include "test/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/chat/chat_template.h"

static struct chat_template *chat_of(const char *template) {
    char path[] = "/tmp/hearth-parts-XXXXXX";
    struct chat_template *c;
    struct error e = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, template, strlen(template)), 0);
    close(fd);
    assert_int_equal(chat_template_open(&c, NULL, path, &e), 0);
    unlink(path);
    return c;
}

/* Collects "T:text|K:thinking|C:call", with adjacent parts of one kind joined. */
struct seen {
    struct buf b;
    int last;
};
static int note(void *ctx, enum output_kind part, const char *s, size_t n) {
    struct seen *v = ctx;
    if ((int)part != v->last) buf_fmt(&v->b, "%s%c:", v->b.len ? "|" : "", "TKC"[part]);
    v->last = part;
    return buf_add(&v->b, s, n);
}

#define K3 "<|open|>think<|sep|><|open|>response<|sep|><|open|>tools<|sep|><|close|>message<|sep|>"
static const struct {
    const char *template, *prompt, *output, *want;
} cases[] = {
    {"<think>{{ x }}</think>", "<|assistant|>", "<think>\nhm\n</think>\n\nyes", "K:hm\n|T:yes"},
    {"<think>{{ x }}</think>", "<|assistant|><think>\n", "hm</think>yes", "K:hm|T:yes"},
    {"<think>{{ x }}</think>", "<|user|>what is <think>?<|assistant|>", "a tag", "T:a tag"}, /* typed, not opened */
    {"<think>{{ x }}</think>", "a<think>\n\n</think>\n\n", "yes", "T:yes"},
    {"{{ c.split('</think>') }}", "<|Assistant|><think>\n", "hm</think>yes", "K:hm|T:yes"},
    {"<think></think><tool_call></tool_call>", "", "a<tool_call>\n{}\n</tool_call>b",
     "T:a|C:<tool_call>\n{}\n</tool_call>|T:b"},
    {"<think></think><tool_call></tool_call>", "<think>", "k<tool_call>k</think>t", "K:k<tool_call>k|T:t"},
    {"plain", "", "<think>a</think>", "T:<think>a</think>"}, /* no markers of this model */
    {"◁think▷◁/think▷", "", "◁think▷hm◁/think▷yes ◁", "K:hm|T:yes ◁"},
    {"<|tool_calls_section_begin|>", "",
     "x<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_calls_section_end|>",
     "T:x|C:<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_calls_section_end|>"},
    {"<｜tool▁calls▁begin｜>", "", "x<｜tool▁calls▁begin｜>f<｜tool▁calls▁end｜>",
     "T:x|C:<｜tool▁calls▁begin｜>f<｜tool▁calls▁end｜>"},
    {"<think></think><｜DSML｜function_calls>", "<think>",
     "a</think>\n\n<｜DSML｜function_calls>\nf</｜DSML｜function_calls>",
     "K:a|C:<｜DSML｜function_calls>\nf</｜DSML｜function_calls>"},
    {"{{ '<' ~ '｜DSML｜' ~ 'tool_calls>' }}", "", "a<｜DSML｜tool_calls>\nf</｜DSML｜tool_calls>",
     "T:a|C:<｜DSML｜tool_calls>\nf</｜DSML｜tool_calls>"},
    {"{{ '<' ~ '｜DSML｜' ~ ' calls>' }}", "", "a<｜DSML｜ calls>\nf</｜DSML｜ calls>",
     "T:a|C:<｜DSML｜ calls>\nf</｜DSML｜ calls>"},
    {"{{ '<' ~ '｜GCML｜' ~ 'tool_calls>' }}", "", "a<｜GCML｜tool_calls>\nf</｜GCML｜tool_calls>",
     "T:a|C:<｜GCML｜tool_calls>\nf</｜GCML｜tool_calls>"},
    {"{{ '｜GCML｜' }}", "", "a<｜GCML｜tool_calls>", "T:a<｜GCML｜tool_calls>"},
    /* MiniCPM5 */
    {"<function name=\"f\"><param name=\"k\">", "",
     "<think>\nhm\n</think>\n\nyes\n<function name=\"f\"></function>\n<function name=\"g\"></function>",
     "T:<think>\nhm\n</think>\n\nyes\n|C:<function name=\"f\"></function>|T:\n|C:<function name=\"g\"></function>"},
    /* Step3 */
    {"<｜tool_calls_begin｜>", "", "a<｜tool_calls_begin｜>\nf<｜tool_calls_end｜>",
     "T:a|C:<｜tool_calls_begin｜>\nf<｜tool_calls_end｜>"},
    /* openPangu */
    {"[unused10]", "", "[unused16]hm[unused17]\nyes[unused11][{}][unused12]", "K:hm|T:yes|C:[unused11][{}][unused12]"},
    {"[TOOL_CALLS]", "", "ok [TOOL_CALLS][{}]", "T:ok |C:[TOOL_CALLS][{}]"},
    {K3, "a<|open|>think<|sep|>",
     "hm<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|><|close|>message<|sep|>", "K:hm|T:yes"},
    {K3, "a<|open|>response<|sep|>",
     "\nyes<|close|>response<|sep|><|open|>tools<|sep|>c<|close|>tools<|sep|><|close|>message<|sep|>",
     "T:\nyes|C:<|open|>tools<|sep|>c<|close|>tools<|sep|>"},
    {K3, "a<|open|>response<|sep|>", "<|open|>think<|sep|>", "T:<|open|>think<|sep|>"},
    {"<think></think>", "", "1 < 2 <b> <thin <thinker>", "T:1 < 2 <b> <thin <thinker>"},
    {"<|channel|><|message|>", "<|start|>assistant",
     "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>", "K:hm|T:yes"},
    {"<|channel|><|message|>", "<|start|>assistant",
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
     "C:<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"},
    {"<|channel|><|message|>", "<|start|>assistant",
     "<|channel|>commentary<|message|>first<|end|><|start|>assistant to=functions.f<|channel|>commentary "
     "json<|message|>{}<|call|>",
     "T:first|C:assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"},
    {"<|channel|><|message|>", "<|start|>assistant<|channel|>final<|message|>", "yes<|return|>", "T:yes"},
    /* Gemma 4 */
    {"{{ t.split('<channel|>') }}<|tool_call>", "<|turn>model\n",
     "<|channel>thought\nhm\n<channel|>yes<|tool_call>call:f{}<tool_call|>",
     "K:hm\n|T:yes|C:<|tool_call>call:f{}<tool_call|>"},
    {"<channel|>", "<|turn>model\n<|channel>thought\n", "hm<channel|>yes", "K:hm|T:yes"},
    {"<channel|>", "<|turn>model\n<|channel>thought\n<channel|>", "yes", "T:yes"},
    /* Cohere */
    {"<|START_THINKING|><|START_RESPONSE|><|START_ACTION|>", "<|START_THINKING|>",
     "hm<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>", "K:hm|T:yes"},
    {"<|START_THINKING|><|START_TEXT|><|START_ACTION|>", "",
     "<|START_THINKING|>hm<|END_THINKING|><|START_TEXT|>yes<|END_TEXT|><|START_ACTION|>[]<|END_ACTION|>",
     "K:hm|T:yes|C:<|START_ACTION|>[]<|END_ACTION|>"},
    {"<|START_RESPONSE|>", "<|START_RESPONSE|>", "yes<|END_RESPONSE|>", "T:yes"},
    /* MiniMax-M3 joins a mark and the tags */
    {"{{ mark ~ '<tool_call>' }}]<]minimax[>[<mm:think>", "<mm:think>",
     "hm</mm:think>yes]<]minimax[>[<tool_call>\n]<]minimax[>[</tool_call>",
     "K:hm|T:yes|C:]<]minimax[>[<tool_call>\n]<]minimax[>[</tool_call>"},
    /* Hunyuan 3 and 4 join a suffix */
    {"{% set s = ':opensource' %}{{ '<think' ~ s ~ '>' }}", "<think:opensource>",
     "hm</think:opensource>yes<tool_calls:opensource>f</tool_calls:opensource>",
     "K:hm|T:yes|C:<tool_calls:opensource>f</tool_calls:opensource>"},
    /* Inkling */
    {"<|content_thinking|>", "<|message_model|>",
     "<|content_thinking|>hm<|end_message|><|message_model|><|content_text|>yes<|end_message|>", "K:hm|T:yes"},
    {"<|content_thinking|>", "<|message_model|><|content_thinking|>",
     "hm<|end_message|><|message_model|><|content_text|>yes", "K:hm|T:yes"},
    {"<|content_invoke_tool_json|>", "<|content_text|>hi<|end_message|>",
     "<|message_model|>f<|content_invoke_tool_json|>{}<|end_message|><|message_model|><|content_text|>a",
     "C:<|content_invoke_tool_json|>{}<|end_message|>|T:a"},
    /* Muse */
    {"<|message|><|eom|>", "<|start|>assistant",
     " to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>yes<|eot|>", "K:hm|T:yes"},
    {"<|message|><|eom|>", "<|start|>user<|message|>hi<|eot|><|start|>assistant to=self<|message|>",
     "hm<|eom|><|start|>assistant to=commentary<|message|>so<|eom|>", "K:hm|T:so"},
    {"<|message|><|eom|>", "<|start|>assistant",
     " to=functions.f<|message|><atem:function_calls>f</atem:function_calls><|eom|>",
     "C:<atem:function_calls>f</atem:function_calls>"},
    {"<|message|><|eom|>", "<|start|>assistant to=user<|message|>", "yes<|eot|>", "T:yes"},
    /* a call that begins a line ends thinking */
    {"<think></think><tool_call>", "<think>\n", "hm\n<tool_call>{}</tool_call>", "K:hm\n|C:<tool_call>{}</tool_call>"},
    {"<think></think><tool_call>", "<think>\n", "<tool_call>{}</tool_call>\n<tool_call>a</tool_call>",
     "C:<tool_call>{}</tool_call>|T:\n|C:<tool_call>a</tool_call>"},
    {"<think></think><tool_call>", "<think>\n", "say <tool_call>\n</think>a", "K:say <tool_call>\n|T:a"},
    /* Solar Open */
    {"<|begin|>assistant<|tool_calls|>", "<|begin|>user<|content|>hi<|end|><|begin|>assistant",
     "<|think|>hm<|end|><|begin|>assistant<|content|>yes<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>f<|"
     "calls|>",
     "K:hm|T:yes|C:<|tool_calls|><|tool_call:begin|>f<|calls|>"},
    {"<|begin|>assistant<|tool_calls|>", "<|begin|>assistant<|think|><|end|><|begin|>assistant",
     "<|content|>yes<|end|>", "T:yes"},
    {"{% macro f(tag) %}<|open|>{{ tag }}<|sep|>{% endmacro %}", "a<|open|>think<|sep|>",
     /* Kimi K3 in a GGUF file */
     "hm<|close|>think<|sep|><|open|>response<|sep|>yes<|close|>response<|sep|>", "K:hm|T:yes"},
    {"[BEGIN FINAL RESPONSE]", "<|begin_assistant|>\nHere are my reasoning steps:\n",
     "hm\n[BEGIN FINAL RESPONSE]\nyes\n[END FINAL RESPONSE]", "K:hm\n|T:yes\n"}, /* Apriel */
    {"<TOOLCALL>", "", "a<TOOLCALL>[]</TOOLCALL>", "T:a|C:<TOOLCALL>[]</TOOLCALL>"},
    {"<|function_call|>", "", "a<|function_call|>{}", "T:a|C:<|function_call|>{}"}, /* GigaChat 3.1 and 3 */
    {"{{ 'function call' }}<|role_sep|>", "", "a function call\nfunction call<|role_sep|>\n{}",
     "T:a function call\n|C:function call<|role_sep|>\n{}"},
    /* LFM2 */
    {"<|tool_list_start|>", "", "a<|tool_call_start|>[f()]<|tool_call_end|>b",
     "T:a|C:<|tool_call_start|>[f()]<|tool_call_end|>|T:b"},
    {"{{ \"List of tools: [\" }}", "", "a<|tool_call_start|>[f()]<|tool_call_end|>b",
     "T:a|C:<|tool_call_start|>[f()]<|tool_call_end|>|T:b"},
    {"<atem:function_calls>", "", "a<atem:function_calls>f</atem:function_calls>b",
     "T:a|C:<atem:function_calls>f</atem:function_calls>|T:b"}, /* Muse without headers */
    {"<dots_function_call>", "", "a<dots_function_call>f</dots_function_call>b",
     "T:a|C:<dots_function_call>f</dots_function_call>|T:b"},
};

static void run(const struct chat_template *c, size_t i, size_t piece, struct seen *v) {
    struct output_parser *p = output_parser_open(c, cases[i].prompt, strlen(cases[i].prompt));
    size_t n = strlen(cases[i].output);
    assert_non_null(p);
    for (size_t at = 0; at < n; at += piece)
        assert_int_equal(output_parser_feed(p, cases[i].output + at, piece < n - at ? piece : n - at, false, note, v),
                         0);
    assert_int_equal(output_parser_flush(p, note, v), 0);
    output_parser_close(&p);
    assert_null(p);
}
static void test_pieces(void **state) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_template *c = chat_of(cases[i].template);
        for (size_t piece = 1; piece < 200; piece = piece * 3 / 2 + 1) {
            struct seen v = {.last = -1};
            run(c, i, piece, &v);
            if (strcmp(v.b.data, cases[i].want)) print_error("case %zu in pieces of %zu: %s\n", i, piece, v.b.data);
            assert_string_equal(v.b.data, cases[i].want);
            buf_free(&v.b);
        }
        chat_template_close(&c);
    }
}

/* With a marked answer, only what is between the markers is the answer. */
static void test_in_answer(void **state) {
    static const struct {
        const char *text;
        bool answers;
    } steps[] = {{"hm", false},
                 {"<|close|>think<|sep|>", false},
                 {"<|open|>response<|sep|>", true},
                 {"a", true},
                 {"<|close|>response<|sep|>", false},
                 {"<|open|>tools<|sep|>", false},
                 {"<|close|>tools<|sep|>", false},
                 {"<|close|>message<|sep|>", false}};
    struct chat_template *c = chat_of(K3);
    struct output_parser *p = output_parser_open(c, "<|open|>think<|sep|>", 20);
    struct seen v = {.last = -1};
    assert_false(output_parser_in_answer(p));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        output_parser_feed(p, steps[i].text, strlen(steps[i].text), false, note, &v);
        assert_int_equal(output_parser_in_answer(p), steps[i].answers);
    }
    buf_free(&v.b);
    output_parser_close(&p);
    p = output_parser_open(c, "<|open|>response<|sep|>", 23);
    assert_true(output_parser_in_answer(p));
    output_parser_close(&p);
    chat_template_close(&c);
}

/* Control tokens that mark nothing are dropped from text and kept inside tool markup. */
static void test_special(void **state) {
    struct chat_template *c = chat_of("<tool_call></tool_call>");
    struct output_parser *p = output_parser_open(c, "", 0);
    struct seen v = {.last = -1};
    assert_non_null(p);
    output_parser_feed(p, "a", 1, false, note, &v);
    output_parser_feed(p, "<|x|>", 5, true, note, &v);
    output_parser_feed(p, "b<|x|>", 6, false, note, &v);
    output_parser_feed(p, "<tool_call>", 11, true, note, &v);
    output_parser_feed(p, "<|x|>", 5, true, note, &v);
    output_parser_flush(p, note, &v);
    assert_string_equal(v.b.data, "T:ab<|x|>|C:<tool_call><|x|>");
    buf_free(&v.b);
    output_parser_close(&p);
    fault_set(FAULT_ALLOC, 1, false, false);
    assert_null(output_parser_open(c, "", 0));
    fault_set(FAULT_ALLOC, 0, false, false);
    chat_template_close(&c);
}
static int whole_characters(void *ctx, enum output_kind part, const char *s, size_t n) {
    size_t *total = ctx;
    *total += n;
    assert_int_equal(utf8_valid(s, n), n);
    return 0;
}
/* Tokens of many characters, such as lines of a box, are passed on in whole characters. */
static void test_long_token(void **state) {
    struct chat_template *c = chat_of("<think></think>");
    struct output_parser *p = output_parser_open(c, "", 0);
    for (size_t n_before = 0; n_before < 6; n_before++) {
        char token[40 * 3];
        size_t total = 0;
        for (int i = 0; i < 40; i++) memcpy(token + 3 * i, "\xE2\x94\x80", 3);
        assert_int_equal(output_parser_feed(p, "<thin", n_before, false, whole_characters, &total), 0);
        assert_int_equal(output_parser_feed(p, token, sizeof token, false, whole_characters, &total), 0);
        assert_int_equal(output_parser_flush(p, whole_characters, &total), 0);
        assert_int_equal(total, n_before + sizeof token);
    }
    output_parser_close(&p);
    chat_template_close(&c);
}
static int stop(void *ctx, enum output_kind part, const char *s, size_t n) { return -77; }
static void test_stops(void **state) { /* the receiver's error is returned */
    struct chat_template *c = chat_of("<think></think>");
    struct output_parser *p = output_parser_open(c, "", 0);
    assert_int_equal(output_parser_feed(p, "hello", 5, false, stop, NULL), -77);
    output_parser_close(&p);
    chat_template_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_special),
                                       cmocka_unit_test(test_in_answer), cmocka_unit_test(test_long_token),
                                       cmocka_unit_test(test_stops)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
