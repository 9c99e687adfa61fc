/* The forms in which chat templates take a conversation (tokenizer/chat/chat_forms.h): what each needs is found, and
 * published templates show all of a loop of tool calls. */
#include "test/unit/unit.h"

#include <dirent.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/fault.h"
#include "test/unit/files.h"
#include "tokenizer/chat/chat_template.h"

static int before(void **state) {
    if (make_dir()) return -1;
    put("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}");
    return 0;
}
static int after(void **state) { return remove_dir(); }

/* Renders a conversation as a prompt, with dir's template. *t: its text; fails if the template refuses it. */
static void prompt_of(const char *template, const char *conv, struct text *t) {
    struct chat_template *c;
    struct error e = {0};
    struct arena a = {0};
    struct json j;
    put("chat_template.jinja", template);
    if (chat_template_open(&c, dir, NULL, &e)) fail_msg("%s: %s", template, e.text);
    assert_int_equal(json_parse(&a, conv, strlen(conv), 0, "conv", &j, &e), 0);
    if (chat_template_render_prompt(c, &j, t, &e)) fail_msg("%s with %s: %s", template, conv, e.text);
    arena_free(&a);
    chat_template_close(&c);
}
#define TOOLS_ \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", \"parameters\": " \
    "{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\", \"description\": \"d\"}}, \"required\": " \
    "[]}}}]"
#define CALL_(more, arguments) \
    "{\"role\": \"assistant\"" more \
    ", \"tool_calls\": [{\"id\": \"call_0123\", \"type\": \"function\", \"function\": " \
    "{\"name\": \"f\", \"arguments\": " arguments "}}]}"
#define RESULT_         "{\"role\": \"tool\", \"tool_call_id\": \"call_0123\", \"content\": \"r\"}"
#define USER_(text)     "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER_(text)   "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define SYSTEM_(text)   "{\"role\": \"system\", \"content\": \"" text "\"}"
#define CONV_(messages) "{\"messages\": [" messages "], " TOOLS_ "}"
/* A template of these pieces for roles, which writes what it is given in the order of the messages. */
#define EACH_(call) \
    "{{ tools | length }}{% for m in messages %}{% if m.tool_calls %}" call "{% else %}[{{ m.role }} {{ m.content }}]" \
    "{% endif %}{% endfor %}"
#define WHOLE_(call) "[{{ " call ".function.name }} {{ " call ".function.arguments | tojson }}]"
#define LOOP_(call)  "{% for k in m.tool_calls %}" call "{% endfor %}"

static void test_forms(void **state) {
    static const struct {
        const char *template, *conv, *want;
    } cases[] = {
        /* content of messages with only calls: null fails, "" fails, null is written, null tells calls from text */
        {EACH_("{{ m.content | length }}" LOOP_(WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"content\": null", "{}") ", " RESULT_), "1[user q]0[f {}][tool r]"},
        {EACH_("{{ m.content | length }}" LOOP_(WHOLE_("k"))), CONV_(USER_("q") ", " CALL_("", "{}") ", " RESULT_),
         "1[user q]0[f {}][tool r]"},
        {EACH_("{{ m.content }}" LOOP_(WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"content\": null", "{}") ", " RESULT_), "1[user q][f {}][tool r]"},
        {EACH_("{% if m.content is none %}" LOOP_(WHOLE_("k")) "{% else %}{{ m.content }}{% endif %}"),
         CONV_(USER_("q") ", " CALL_(", \"content\": \"\"", "{}") ", " RESULT_), "1[user q][f {}][tool r]"},
        {EACH_("{{ m.content }}" LOOP_(WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"content\": \"t\"", "{}") ", " RESULT_), "1[user q]t[f {}][tool r]"},
        /* arguments: an object, whatever came; text where the template joins it; text that is no object is kept */
        {EACH_(LOOP_("{% for a, v in k.function.arguments.items() %}{{ a }}={{ v }};{% endfor %}")),
         CONV_(USER_("q") ", " CALL_("", "\"{\\\"x\\\": 1}\"") ", " CALL_("", "\"\"") ", " CALL_(
             "", "\" \"") ", " CALL_("", "\"null\"") ", " CALL_("", "null") ", " CALL_("", "\"{x\"")),
         "1[user q]x=1;arguments={x;"},
        {EACH_(LOOP_("{{ k.function.name + k.function.arguments }}")),
         CONV_(USER_("q") ", " CALL_("", "{\"x\": [1, \"a\"]}") ", " CALL_("", "\"\"")),
         "1[user q]f{\"x\": [1, \"a\"]}f{}"},
        {EACH_(LOOP_("{{ k.function.arguments }}")), CONV_(USER_("q") ", " CALL_("", "{\"x\": 1}")),
         "1[user q]{\"x\": 1}"},
        /* a tool that has only a name, where that is not enough */
        {"{{ messages[0].content }} {% for t in tools or [] %}{{ t.function.name + t.function.description }} {{ "
         "t.function.parameters | tojson }}{% endfor %}",
         "{\"messages\": [" USER_("q") "], \"tools\": [{\"function\": {\"name\": \"f\"}}]}",
         "q f {\"type\": \"object\", \"properties\": {}}"},
        {"{{ messages[0].content }} {{ tools | tojson }}",
         "{\"messages\": [" USER_("q") "], \"tools\": [{\"function\": {\"name\": \"f\"}}]}",
         "q [{\"function\": {\"name\": \"f\"}}]"},
        /* no calls at all are no list of calls */
        {EACH_("calls") "{% for m in messages %}{% if m.tool_calls is defined %}!{% endif %}{% endfor %}",
         CONV_(USER_("q") ", "
                          "{\"role\": \"assistant\", \"content\": \"t\", \"tool_calls\": []}"),
         "1[user q][assistant t]"},
        /* thinking under the name that the template reads, or as a part of the content */
        {EACH_("({{ m.thinking }})" LOOP_(WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"reasoning_content\": \"why\"", "{}")), "1[user q](why)[f {}]"},
        {EACH_("({{ m.reasoning }})" LOOP_(WHOLE_("k"))), CONV_(USER_("q") ", " CALL_(", \"thinking\": \"why\"", "{}")),
         "1[user q](why)[f {}]"},
        {EACH_("({{ m.reasoning_content }})" LOOP_(WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"reasoning\": \"why\"", "{}")), "1[user q](why)[f {}]"},
        {EACH_("{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}({{ p.type }} {{ "
               "p[p.type] }}){% endfor %}{% endif %}" LOOP_(WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"content\": \"t\", \"reasoning_content\": \"why\"",
                                     "{}") ", " CALL_(", \"content\": null, \"reasoning_content\": \"so\"", "{}")),
         "1[user q](thinking why)(text t)[f {}](thinking so)[f {}]"},
        {EACH_("{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}({{ m.thinking }})"),
         CONV_(USER_("q") ", " CALL_(", \"content\": \"t\", \"reasoning_content\": \"why\"", "{}")), "1[user q]()"},
        {EACH_("{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}({{ m.thinking }})" LOOP_(
             WHOLE_("k"))),
         CONV_(USER_("q") ", " CALL_(", \"content\": \"t\", \"reasoning_content\": \"why\"", "{}")),
         "1[user q](why\n\nt)[f {}]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text t;
        prompt_of(cases[i].template, cases[i].conv, &t);
        if (strcmp(t.data, cases[i].want)) fail_msg("%s: %s, not %s", cases[i].template, t.data, cases[i].want);
        text_free(&t);
    }
}

/* Results in the order of their calls, where nothing else tells them apart. */
static void test_order_of_results(void **state) {
#define TWO_ \
    "{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"a\", \"function\": {\"name\": \"f\"}}, {\"id\": \"b\", " \
    "\"function\": {\"name\": \"g\"}}, {\"id\": \"c\", \"function\": {\"name\": \"h\"}}]}"
#define OF_(id) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": \"" id "\"}"
    static const char plain[] = EACH_(LOOP_("{{ k.function.name }}")), ids[] = EACH_(LOOP_("<{{ k.id }}>" WHOLE_("k")));
    static const struct {
        const char *template, *conv, *want;
    } cases[] = {
        {plain, CONV_(USER_("q") ", " TWO_ ", " OF_("c") ", " OF_("a") ", " OF_("b")),
         "1[user q]fgh[tool a][tool b][tool c]"},
        {plain, CONV_(USER_("q") ", " TWO_ ", " OF_("b") ", " OF_("?") ", " OF_("a") ", " OF_("c")),
         "1[user q]fgh[tool a][tool b][tool ?][tool c]"},
        /* no result passes another message, or one of other calls */
        {plain, CONV_(USER_("q") ", " TWO_ ", " OF_("c") ", " USER_("r") ", " OF_("b") ", " OF_("a")),
         "1[user q]fgh[tool c][user r][tool a][tool b]"},
        {plain, CONV_(USER_("q") ", " OF_("b") ", " TWO_ ", " OF_("c") ", " TWO_ ", " OF_("b") ", " OF_("a")),
         "1[user q][tool b]fgh[tool c]fgh[tool a][tool b]"},
        {ids, CONV_(USER_("q") ", " TWO_ ", " OF_("c") ", " OF_("a")),
         "1[user q]<a>[f {}]<b>[g {}]<c>[h {}][tool c][tool a]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text t;
        prompt_of(cases[i].template, cases[i].conv, &t);
        if (strcmp(t.data, cases[i].want)) fail_msg("case %zu: %s, not %s", i, t.data, cases[i].want);
        text_free(&t);
    }
}

/* Ids of nine letters or digits, the same for a call and its result; others stay. */
static void test_form_of_ids(void **state) {
    static const char nine[] = EACH_(LOOP_("{% if k.id | length != 9 %}{{ raise_exception('id') }}{% endif %}<{{ k.id "
                                           "}}>" WHOLE_("k"))) "{% for m in messages %}{% if m.role == 'tool' %}<{{ "
                                                               "m.tool_call_id }}>{% endif %}{% endfor %}",
                      any[] = EACH_(LOOP_("<{{ k.id }}>" WHOLE_("k")));
    struct text t;
    char id[10] = "", result[10] = "";
    prompt_of(nine, CONV_(USER_("q") ", " CALL_("", "{}") ", " RESULT_), &t);
    assert_int_equal(sscanf(t.data, "1[user q]<%9[a-z0-9]>[f {}][tool r]<%9[a-z0-9]>", id, result), 2);
    assert_int_equal(strlen(id), 9);
    assert_string_equal(id, result);
    text_free(&t);
    /* none was given, as by Ollama's clients: both get one */
    prompt_of(nine,
              CONV_(USER_("q") ", "
                               "{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}, "
                               "{\"function\": {\"name\": \"g\"}}]}, {\"role\": \"tool\", \"content\": \"r\"}, "
                               "{\"role\": \"tool\", \"content\": \"s\"}"),
              &t);
    assert_string_equal(t.data, "1[user q]<100000000>[f {}]<200000000>[g {}][tool r][tool s]<100000000><200000000>");
    text_free(&t);
    prompt_of(any, CONV_(USER_("q") ", " CALL_("", "{}") ", " RESULT_), &t);
    assert_string_equal(t.data, "1[user q]<call_0123>[f {}][tool r]");
    text_free(&t);
}

/* System prompts that a template refuses or drops, and questions that it refuses where they are. */
static void test_form_of_roles(void **state) {
#define ROLES_(test)  "{% for m in messages %}" test "[{{ m.role }} {{ m.content }}]{% endfor %}"
#define REFUSE_(when) "{% if " when " %}{{ raise_exception('order') }}{% endif %}"
    static const char conv[] =
        "{\"messages\": [" SYSTEM_("a") ", {\"role\": \"developer\", \"content\": \"b\"}, " USER_(
            "c") ", {\"role\": \"assistant\", \"content\": \"d\"}, " SYSTEM_("e") ", " USER_("f") "]}";
    static const struct {
        const char *template, *want;
    } cases[] = {
        {ROLES_(""), "[system a][developer b][user c][assistant d][system e][user f]"},
        {ROLES_("{% if m.role == 'system' and loop.index0 %}{% continue %}{% endif %}"),
         "[system a\n\nb][user c][assistant d][user e][user f]"},
        {ROLES_(REFUSE_("m.role == 'system' and loop.index0")), "[system a\n\nb][user c][assistant d][user e][user f]"},
        {ROLES_(REFUSE_("m.role == 'system' and loop.index0")
                    REFUSE_("m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'user'")),
         "[system a\n\nb][user c][assistant d][user e\n\nf]"},
        {ROLES_(REFUSE_("m.role == 'system'") REFUSE_("m.role == 'user' and loop.index0 and messages[loop.index0 - "
                                                      "1].role == 'user'")),
         "[user a\n\nb\n\nc][assistant d][user e\n\nf]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text t;
        prompt_of(cases[i].template, conv, &t);
        if (strcmp(t.data, cases[i].want)) fail_msg("%s: %s, not %s", cases[i].template, t.data, cases[i].want);
        text_free(&t);
    }
    /* a greeting, and an answer in two messages; a call stays a message of its own */
    static const char answers[] = "{\"messages\": [" SYSTEM_("a") ", " ANSWER_("b") ", " USER_("c") ", " ANSWER_(
        "d") ", " ANSWER_("") ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [], "
                              "\"reasoning_content\": \"\"}, " ANSWER_("e") ", " USER_("f") "]}";
    static const char alternate[] = ROLES_(REFUSE_("m.role != 'system' and (m.role == 'user') != ((loop.index0 - (1 if "
                                                   "messages[0].role == 'system' else 0)) % 2 == 0)"));
    struct text t;
    prompt_of(ROLES_(""), answers, &t);
    assert_string_equal(t.data,
                        "[system a][assistant b][user c][assistant d][assistant ][assistant ][assistant e][user f]");
    text_free(&t);
    prompt_of(alternate, answers, &t);
    assert_string_equal(t.data, "[system a][user ][assistant b][user c][assistant d\n\ne][user f]");
    text_free(&t);
    prompt_of(EACH_(LOOP_(WHOLE_("k"))) "{% for m in messages %}" REFUSE_(
                  "m.role == 'user' and loop.index0 and messages[loop.index0 - 1].role == 'tool'") "{% endfor %}",
              CONV_(USER_("q") ", " CALL_("", "{}") ", " RESULT_ ", " USER_("s")), &t);
    assert_string_equal(t.data, "1[user q][f {}][tool r\n\ns]");
    text_free(&t);
}

/* Three rounds of a tool, in every form that clients send, through a published template. Returns whether it shows
 * calls; those that do must show all of every round, whatever the form. */
static bool shows_rounds(const struct chat_template *c, const char *name) {
    static const char *const contents[] = {", \"content\": null", "", ", \"content\": \"\"",
                                           ", \"content\": \"words\""},
                             *const arguments[] = {"{\"x\": 1}", "\"{\\\"x\\\": 1}\"", "\"\"", "\"null\"", "null",
                                                   "\"{x\""};
    for (int i = 0; i < 4 * 6; i++) {
        struct buf b = {0};
        struct arena a = {0};
        struct json j;
        struct text t;
        struct error e = {0};
        buf_str(&b, "{\"add_generation_prompt\": true, \"messages\": [" SYSTEM_("s") ", " USER_("q"));
        for (int k = 0; k < 3; k++)
            buf_fmt(&b,
                    ", {\"role\": \"assistant\"%s, \"reasoning_content\": \"why\", \"tool_calls\": [{\"id\": "
                    "\"call_0123456789_%d\", \"type\": \"function\", \"function\": {\"name\": \"polish\", "
                    "\"arguments\": %s}}]}, {\"role\": \"tool\", \"tool_call_id\": \"call_0123456789_%d\", "
                    "\"content\": \"basalt%d\"}",
                    contents[i % 4], k, arguments[i / 4], k, k);
        buf_str(&b, "], " TOOLS_ "}");
        assert_int_equal(json_parse(&a, b.data, b.len, 0, "conv", &j, &e), 0);
        int rc = chat_template_render_prompt(c, &j, &t, &e);
        int n = 0;
        for (const char *s = rc ? NULL : t.data; s && (s = strstr(s, "polish")); s++) n++;
        const bool shown = !rc && n >= 3 && strstr(t.data, "basalt0") && strstr(t.data, "basalt2");
        if (!rc) text_free(&t);
        arena_free(&a);
        buf_free(&b);
        if (!shown && !i) return false;
        if (!shown) fail_msg("%s: content %d, arguments %d: %s", name, i % 4, i / 4, rc ? e.text : "calls are lost");
    }
    return true;
}
static void test_rounds_of_published_templates(void **state) {
    /* these know no tools, or use what Jinja2's sandbox refuses */
    static const char *const none[] = {"microsoft-Phi-3.5-mini-instruct.jinja", "llama-cpp-deepseek-r1.jinja",
                                       "Kimi-K2-Instruct.jinja"};
    const char *from = getenv("HEARTH_TEMPLATES") ? getenv("HEARTH_TEMPLATES") : SHARED_DIR "/templates";
    DIR *d = opendir(from);
    int n = 0;
    if (!d) {
        SKIP("no ../shared/templates");
    }
    for (struct dirent *f; (f = readdir(d));) {
        const size_t len = strlen(f->d_name);
        char path[4096];
        struct chat_template *c;
        struct error e = {0};
        bool expected = true;
        if (len < 7 || strcmp(f->d_name + len - 6, ".jinja")) continue;
        snprintf(path, sizeof path, "%s/%s", from, f->d_name);
        if (chat_template_open(&c, dir, path, &e)) fail_msg("%s", e.text);
        for (size_t i = 0; i < sizeof none / sizeof *none; i++) expected &= strcmp(f->d_name, none[i]) != 0;
        const bool shown = shows_rounds(c, f->d_name);
        if (shown != expected && !getenv("HEARTH_TEMPLATES")) fail_msg("%s: calls are lost", f->d_name);
        if (!shown) print_message("%s shows no calls\n", f->d_name);
        n += shown;
        chat_template_close(&c);
    }
    closedir(d);
    print_message("%d templates\n", n);
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_order_of_results),
        cmocka_unit_test(test_form_of_ids),
        cmocka_unit_test(test_form_of_roles),
        cmocka_unit_test(test_rounds_of_published_templates),
    };
    return cmocka_run_group_tests(tests, before, after);
}
