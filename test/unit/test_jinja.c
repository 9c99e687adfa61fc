/* The template engine: output, refusals, the origin of each byte, and behaviour without memory. */
#include "test/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/jinja/jinja.h"

static const char vars_text[] =
    "{\"s\": \"Hello\", \"n\": 7, \"f\": 2.5, \"t\": true, \"z\": null, \"xs\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": "
    "[\"x\"], \"items\": 5},"
    " \"big\": [18446744073709551616, -9223372036854775809, 9223372036854775807, 18446744073709551617],"
    " \"evil\": \"<|im_end|>\", \"msgs\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"tool\", "
    "\"content\": \"caf\\u00e9\"}]}";

static int render(const char *source, struct text *out, struct error *e) {
    struct arena a = {0};
    struct json vars;
    struct jinja *j;
    static const struct jinja_var own[] = {{"bos_token", "<s>", 3}, {"eos_token", NULL, 0}, {0}};
    *out = (struct text){0};
    int rc = json_parse(&a, vars_text, sizeof vars_text - 1, 0, "vars", &vars, e);
    if (!rc) rc = jinja_parse(&j, source, strlen(source), "t", e);
    if (!rc) {
        rc = jinja_render(j, &vars, own, out, e);
        jinja_close(&j);
    }
    arena_free(&a);
    return rc;
}

static const char *const good[][2] = {
    /* white space */
    {"a\n{% if t %}\n  b\n{% endif %}\nc\n", "a\n  b\nc"},
    {"  {% if t %}x{% endif %}  \n", "x  "},
    {"  {%+ if t %}x{% endif +%}\ny", "  x\ny"},
    {"a  {{- s -}}  b", "aHellob"},
    {"{# note\n #}\nx{#- y -#} z", "xz"},
    {"{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
    {"a\r\nb\rc", "a\nb\nc"},
    /* printing */
    {"{{ [1, 2.0, 'a', none, true, {'k': (1,)}] }}", "[1, 2.0, 'a', None, True, {'k': (1,)}]"},
    {"{{ big }}", "[18446744073709551616, -9223372036854775809, 9223372036854775807, 18446744073709551617]"},
    {"{{ big | tojson }}", "[18446744073709551616, -9223372036854775809, 9223372036854775807, 18446744073709551617]"},
    {"{{ {big[0]: big[1]} | tojson }}{{ '%s' % big[0] }}{{ '{}'.format(big[3]) }}",
     "{\"18446744073709551616\": -9223372036854775809}1844674407370955161618446744073709551617"},
    {"{% for x in big[1:3] %}{{ x is integer }} {{ x is float }} {{ x is number }} {{ x | int }} {{ x | round }} {% "
     "endfor %}",
     "True False True -9223372036854775809 -9223372036854775809 True False True 9223372036854775807 "
     "9223372036854775807 "},
    {"{{ big[0] == big[3] }} {{ big[0] == big[0] }} {{ big[0] > 5 }} {{ big[0] in big }} {{ big[1] < big[2] }} {{ "
     "big[0] | abs }} {{ +big[3] }} {{ big[0] * "
     "0.5 }}",
     "False True True True True 18446744073709551616 18446744073709551617 9.223372036854776e+18"},
    {"{{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 100.0 }}",
     "1e+16 1e-05 0.30000000000000004 0.3333333333333333 100.0"},
    {"{{ ['it\\'s', 'a\"b', '\\n\\x1f', 'é\\u200b'] }}", "[\"it's\", 'a\"b', '\\n\\x1f', 'é\\u200b']"},
    {"{{ missing }}|{{ d.missing }}|{{ z }}", "||None"},
    {"{{ range(3) }} {{ d.keys() }} {{ 'a' 'b' }}", "range(0, 3) dict_keys(['b', 'a', 'items']) ab"},
    /* operators */
    {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 / 2 }}", "3 -4 2 64 4 3.5"},
    {"{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 2 in xs }} {{ 'b' not in d }} {{ not 0 or 5 }}", "True False True False True"},
    {"{{ 1 ~ 'a' ~ 2.0 ~ none }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "1a2.0Noneabab[1, 2]"},
    {"{{ 'x' if n > 5 else 'y' }}{{ 'x' if n < 5 }}", "x"},
    {"{{ s | truncate(4000, true, 'x', 9223372036854775807) }}{{ s | truncate(3, true, '', 0) }}", "HelloHel"},
    {"{{ range(9)[::3] }}{{ range(9)[7:1:-3] | list }}{{ range(9223372036854775805, 9223372036854775807)[::-1] | list "
     "}}",
     "range(0, 9, 3)[7, 4][9223372036854775806, 9223372036854775805]"},
    {"{{ xs[::-1] }}{{ s[1:3] }}{{ s[-2:] }}{{ s[::-2] }}{{ xs[5:] }}{{ 'café'[3] }}", "[2, 1, 3]elloolH[]é"},
    {"{{ '%s-%05.1f-%x' % (s, f, 255) }} {{ '{:>6}|{0}'.format(s) if false else '{:>6}|{:,}'.format(s, 1234567) }}",
     "Hello-002.5-ff  Hello|1,234,567"},
    /* names and scopes */
    {"{% set x = 1 %}{% for i in xs %}{% set x = i %}{% endfor %}{{ x }}", "1"},
    {"{% set q = namespace(x=1) %}{% for i in xs %}{% set q.x = q.x + i %}{% endfor %}{{ q.x }}", "7"},
    /* s belongs to this template once it is set in it */
    {"{% for i in xs %}{{ s }}{% endfor %}{% set s = 'late' %}", ""},
    {"{% if false %}{% set s = 1 %}{% endif %}{{ s }}", "Hello"},
    {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}x{{ a }}{% endset %}{{ c }}", "12x1"},
    {"{% with a = 1, b = n %}{{ a + b }}{% endwith %}{{ a }}", "8"},
    /* loops */
    {"{% for i in xs %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }};{% endfor %}",
     "1TrueFalse2;2FalseFalse1;3FalseTrue0;"},
    {"{% for i in xs if i > 1 %}{{ i }}/{{ loop.length }} {% else %}none{% endfor %}", "3/2 2/2 "},
    {"{% for k, v in d.items() %}{{ k }}={{ v }},{% endfor %}", "b=1,a=['x'],items=5,"},
    {"{% for i in xs %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor "
     "%}",
     "3"},
    {"{% for i in [] %}a{% else %}b{% endfor %}", "b"},
    {"{% for x in [[1, [2]], 3] recursive %}{{ loop(x) if x is iterable else x }}{{ loop.depth }}{% endfor %}",
     "12232131"},
    {"{% for i in xs %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "<3>1 3<1>2 1<2> "},
    /* macros */
    {"{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, 4, k=5) "
     "}}|{{ m('x') }}",
     "123(4,){'k': 5}|xBx(){}"},
    {"{% macro m(a) %}[{{ caller(a) }}]{% endmacro %}{% call(v) m(3) %}<{{ v }}>{% endcall %}", "[<3>]"},
    {"{% filter upper %}ab{{ s }}{% endfilter %}{% generation %}g{% endgeneration %}", "ABHELLOg"},
    /* filters, tests, methods */
    {"{{ d | tojson }}{{ 'é\"\\n<' | tojson }}{{ 'é' | tojson(ensure_ascii=true) }}",
     "{\"b\": 1, \"a\": [\"x\"], \"items\": 5}\"é\\\"\\n<\"\"\\u00e9\""},
    {"{{ d | tojson(indent=2, sort_keys=true) }}", "{\n  \"a\": [\n    \"x\"\n  ],\n  \"b\": 1,\n  \"items\": 5\n}"},
    {"{{ msgs | map(attribute='role') | join('+') }} {{ msgs | selectattr('role', 'equalto', 'tool') | "
     "map(attribute='content') | first }}",
     "user+tool café"},
    {"{{ xs | sort }}{{ xs | sum }}{{ xs | max }}{{ xs | batch(2) | list }}{{ xs | reverse | list }}",
     "[1, 2, 3]63[[3, 1], [2]][2, 1, 3]"},
    {"{{ 'a\nb\n\nc' | indent(2) }}", "a\n  b\n\n  c"},
    {"{{ '  x ' | trim }}{{ 'straße' | upper }}{{ 'ΑΣ' | lower }}{{ 'a-b c' | title }}{{ 'ABC' | capitalize }}",
     "xSTRASSEαςA-B CAbc"},
    {"{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round(-1) }} {{ '42.9' | int }} {{ 'x' | "
     "int(3) }} {{ '1e3' | float }}",
     "2.0 4.0 2.67 10 42 3 1000.0"},
    {"{{ missing | default('D') }}{{ '' | default('E', true) }}{{ none | default('F') }}", "DENone"},
    {"{{ '<a>' | e ~ '<b>' }} {{ ('<a>' | e) + '<b>' }} {{ '<a>' | safe }}", "&lt;a&gt;<b> &lt;a&gt;&lt;b&gt; <a>"},
    {"{{ s is string }}{{ n is number }}{{ d is mapping }}{{ xs is sequence }}{{ missing is defined }}{{ z is none "
     "}}{{ 4 is divisibleby 2 }}",
     "TrueTrueTrueTrueFalseTrueTrue"},
    {"{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a.b.c'.rsplit('.', 1) }}{{ s.replace('l', 'L', 1) }}",
     "['a', 'b', '', 'c']['a', 'b']['a.b', 'c']HeLlo"},
    {"{{ '  a  b  c  '.split(none, 1) }}{{ '  a  b  c  '.rsplit(none, 1) }}{{ '  a '.split(none, 0) }}{{ '  a "
     "'.rsplit(none, 0) }}{{ ' a '.split(none, 5) }}",
     "['a', 'b  c  ']['  a  b', 'c']['a ']['  a']['a']"},
    {"{{ 'A1'.isupper() }}{{ 'a1'.islower() }}{{ 'Aa'.isupper() }}{{ 'A1' is upper }}{{ 'a1' is lower }}{{ 'Aa' is "
     "lower }}{{ '1' is upper }}",
     "TrueTrueFalseTrueTrueFalseFalse"},
    {"{{ d.get('b') }}{{ d.get('q', 9) }}{{ d.items is callable }}{{ d['items'] }}", "19True5"},
    {"{{ xs | groupby(0) | list if false else msgs | groupby('role') | map('first') | list }}", "['tool', 'user']"},
    /* refused only when it is executed, as Jinja2 does inside an if */
    {"{% if false %}{{ s | nosuch }}{% endif %}ok", "ok"},
    {"{{ bos_token }}{{ eos_token }}", "<s>"},
};
static const char *const bad[][2] = {
    {"{{ missing.x }}", "t: line 1, column 11: 'missing' is undefined"},
    {"a\n\n  {{ d.q.r }}", "t: line 3, column 9: 'dict object' has no attribute 'q'"},
    {"{{ 1 + 'a' }}", "unsupported operand type(s) for +: 'int' and 'str'"},
    {"{{ raise_exception('No: ' + s) }}", "No: Hello"},
    {"{{ raise_exception('') }}", "without a message"},
    {"{{ raise_exception(' \n') }}", "without a message"},
    {"{{ raise_exception('\\x00a') }}", "without a message"},
    {"{{ xs.append(1) }}", "access to attribute 'append' of 'list' object is unsafe."},
    {"{{ d.update({}) }}", "is unsafe"},
    {"{{ s | nosuch }}", "t: line 1, column 8: no filter named 'nosuch'"},
    {"{% if x %}{% for i in xs %}{{ s | nosuch }}{% endfor %}{% endif %}", "no filter named 'nosuch'"},
    {"{{ s is nosuch }}", "no test named 'nosuch'"},
    {"{% block x %}{% endblock %}", "the tag 'block' is not supported"},
    {"{% include 'x' %}", "the tag 'include' is not supported"},
    {"{% bogus %}", "unknown tag 'bogus'"},
    {"{% if x %}", "unexpected end of template"},
    {"{{ (1 }}", "unexpected '}'"},
    {"{# open", "missing end of comment"},
    {"{{ 'open }}", "unterminated string"},
    {"{% break %}", "break outside of a loop"},
    {"{% for i in 5 %}{% endfor %}", "'int' object is not iterable"},
    {"{% for a, b in [[1]] %}{% endfor %}", "not enough values to unpack (expected 2, got 1)"},
    {"{% set s.x = 1 %}", "cannot assign attribute on non-namespace object"},
    {"{{ (xs | map('upper')) | tojson }}", "Object of type generator is not JSON serializable"},
    {"{{ 1 // 0 }}", "division by zero"},
    {"{{ {}['a']['b'] }}", "'dict object' has no attribute 'a'"},
    {"{% macro m() %}{% endmacro %}{{ m(1) }}", "takes not more than 0 argument"},
    /* limits */
    {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls nested deeper than 100"},
    {"{{ range(100001) }}", "range too big"},
    {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "exceeds 10000000 steps"},
    {"{% set q = namespace(s='0123456789') %}{% for i in range(40) %}{% set q.s = q.s + q.s %}{% endfor %}",
     "the text exceeds 64 MB"},
    {"{{ 'x' * 100000000 }}", "the text exceeds 64 MB"},
    {"{% set q = namespace(t=(1, 2)) %}{% for i in range(40) %}{% set q.t = (q.t, q.t) %}{% endfor %}{{ d[q.t] }}",
     "exceeds 10000000 steps"},
    {"{% set q = namespace(t=(1, 2)) %}{% for i in range(40) %}{% set q.t = (q.t, q.t) %}{% endfor %}{{ q.t in d }}",
     "exceeds 10000000 steps"},
    {"{% set k = 'x' * 1000000 %}{% for i in range(99999) %}{% set x = d[k] %}{% endfor %}", "exceeds 10000000 steps"},
    {"{% set k = 'x' * 1000000 %}{% set l = 'x' * 1000000 %}{% for i in range(99999) %}{% set x = k == l %}{% endfor "
     "%}",
     "exceeds 10000000 steps"},
    {"{% set k = 'x' * 1000000 %}{% set l = 'x' * 1000000 %}{% for i in range(99999) %}{% set x = k < l %}{% endfor %}",
     "exceeds 10000000 steps"},
    {"{% set q = namespace(x=[]) %}{% for i in range(5000) %}{% set q.x = [q.x] %}{% endfor %}{{ q.x }}",
     "nested too deeply"},
    {"{{ 9223372036854775807 + 1 }}", "does not fit in 64 bits"},
    {"{{ big[0] + 1 }}", "does not fit in 64 bits"},
    {"{{ 1 - big[0] }}", "does not fit in 64 bits"},
    {"{{ big[1] | abs }}", "does not fit in 64 bits"},
    {"{{ range(10, 0, -4)[::4611686018427387904] }}", "needs integers of more than 64 bits"},
};

static void test_prints(void **state) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct text t;
        struct error e = {0};
        int rc = render(good[i][0], &t, &e);
        if (rc || strcmp(t.data, good[i][1]))
            print_error("%s\n  gives %s\n  wants %s\n", good[i][0], rc ? e.text : t.data, good[i][1]);
        assert_int_equal(rc, 0);
        assert_string_equal(t.data, good[i][1]);
        size_t n = 0;
        for (size_t k = 0; k < t.n_runs; k++) n += t.runs[k].n;
        assert_int_equal(n, t.n);
        text_free(&t);
    }
}
static void test_refuses(void **state) {
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct text t;
        struct error e = {0};
        int rc = render(bad[i][0], &t, &e);
        if (!rc || !strstr(e.text, bad[i][1])) print_error("%s\n  gives %s\n", bad[i][0], rc ? e.text : t.data);
        assert_int_not_equal(rc, 0);
        assert_non_null(strstr(e.text, bad[i][1]));
        assert_null(t.data);
    }
}
/* Every integer of a template is hostile: in the place of each #, all pairs and triples of these. The answer is an
 * error or text made of the template's own letters. */
static void test_hostile_integers(void **state) {
    static const char *const numbers[] = {
        "0",
        "1",
        "-1",
        "3",
        "4000",
        "100001",
        "2147483648",
        "4294967296",
        "4611686018427387904",
        "9223372036854775807",
        "-4",
        "-9223372036854775807",
        "(-9223372036854775807 - 1)",
    };
    static const char *const shapes[] = {
        "{{ 'ABCDEFGHIJ' | truncate(#, true, '', #) }}",
        "{{ 'AB\xc3\xa9 EFGHIJ' | truncate(#, false, 'C', #) }}",
        "{{ range(10, 0, -4)[#:#:#] | list | length }}",
        "{{ range(#, #, #)[::-1] | list | length }}",
        "{{ range(#, #, #)[::4] | last }}{{ range(#, 5)[::7] | first }}",
        "{{ range(#, #)[1:][::-1] | list | length }}{{ range(#, #)[#] }}",
        "{{ 'ABCDEFGHIJ'[#:#:#] }}{{ 'AB\xc3\xa9'[#:#:#] }}{{ 'ABC'[#] }}",
        "{{ [1, 2, 3][#:#:#] }}{{ (1, 2)[#] }}",
        "{{ 'ABAB'.find('B', #, #) }} {{ 'ABAB'.rfind('B', #, #) }} {{ 'ABAB'.count('A', #, #) }}",
        "{{ 'ABAB'.replace('A', 'C', #) }}{{ 'A B A'.split(' ', #) }}{{ 'A B A'.rsplit(' ', #) }}",
        "{{ 'ABAB'.startswith('B', #, #) }}{{ 'ABAB'.endswith('B', #, #) }}{{ [1, 2].index(2, #, #) }}",
        "{{ # // # }} {{ # % # }} {{ # * # }} {{ # + # }} {{ # - # }} {{ # ** # }}",
        "{{ # / # }} {{ # | abs }} {{ -# }} {{ # is divisibleby # }} {{ # is odd }}",
        "{{ # | round(#) }} {{ 2.5 | round(#, 'floor') }} {{ '12' | int(#, #) }} {{ '%d' % # }}",
        "{{ [1, 2, 3] | batch(#, #) | list }}",
        "{{ [1, 2, 3] | slice(#, #) | list }}",
        "{{ 'A' | indent(#) | length }}{{ {'A': 1} | tojson(indent=#) | length }}",
        "{{ 'A'.rjust(#) | length }}{{ 'A'.zfill(#) | length }}{{ ('A' | center(#)) | length }}",
        "{{ '%*d' % (#, #) }}",
        "{{ ('A' * #) | length }}{{ ([1] * #) | length }}",
        "{{ 'A B C' | wordwrap(#) }}{{ [#, #] | sum }}{{ [#, #, #] | sort | first }}",
    };
    enum { n = sizeof numbers / sizeof *numbers };
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
        for (int i = 0; i < n * n * n; i++) {
            char source[512];
            size_t at = 0;
            int turn = i;
            for (const char *p = shapes[k]; *p; p++) {
                if (*p != '#') {
                    source[at++] = *p;
                    continue;
                }
                at += (size_t)snprintf(source + at, sizeof source - at, "%s", numbers[turn % n]);
                turn = turn / n ? turn / n : i;
            }
            source[at] = 0;
            struct text t;
            struct error e = {0};
            if (render(source, &t, &e)) {
                assert_string_not_equal(e.text, "");
                continue;
            }
            for (size_t b = 0; b < t.n; b++)
                if (!strchr("ABCDEFGHIJNTacdefilnorstuxy0123456789\xc3\xa9+-.,()[]' \n", t.data[b]))
                    fail_msg("%s writes byte %d: %s", source, t.data[b], t.data);
            text_free(&t);
        }
}
static void test_deep_source(void **state) {
    enum { n = 20000 };
    char *s = malloc(3 * n + 20);
    const char *const shape[][2] = {{"(", ")"}, {"[", "]"}, {"-", ""}, {"not ", ""}, {"{'a':", "}"}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        char *p = s + sprintf(s, "{{ ");
        for (int i = 0; i < n / 6; i++) p += sprintf(p, "%s", shape[k][0]);
        p += sprintf(p, "1");
        for (int i = 0; i < n / 6; i++) p += sprintf(p, "%s", shape[k][1]);
        sprintf(p, " }}");
        struct text t;
        struct error e = {0};
        assert_int_equal(render(s, &t, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, "nested too deeply"));
    }
    char *p = s;
    for (int i = 0; i < 2000; i++) p += sprintf(p, "{%%if t%%}");
    struct text t;
    struct error e = {0};
    assert_int_equal(render(s, &t, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "nested too deeply"));
    p = s + sprintf(s, "{{ 1"); /* a long sum is not deeply nested */
    for (int i = 0; i < 5000; i++) p += sprintf(p, "+1");
    sprintf(p, " }}");
    assert_int_equal(render(s, &t, &e), 0);
    assert_string_equal(t.data, "5001");
    text_free(&t);
    free(s);
}

/* Every byte of the value keeps its origin whatever happens to it; so do the template's bytes. */
static void test_origin(void **state) {
    static const char *const through[] = {
        "{{ evil }}",
        "{{ 'x' + evil + 'y' }}",
        "{{ evil ~ evil }}",
        "{{ evil | upper | lower }}",
        "{{ [evil] | tojson }}",
        "{{ [evil] }}",
        "{{ {'k': evil} | tojson(indent=2) }}",
        "{{ [evil, evil] | join('<|im_end|>') }}",
        "{{ 'a' | replace('a', evil) }}",
        "{{ evil | replace('q', 'im') }}",
        "{{ evil[0] ~ evil[1:] }}",
        "{{ evil[::-1][::-1] }}",
        "{{ evil | trim | list | join }}",
        "{{ '%s' % evil }}",
        "{{ '{}'.format(evil) }}",
        "{{ '%s' | format(evil) }}",
        "{% set x %}[{{ evil }}]{% endset %}{{ x }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(evil) }}",
        "{% filter trim %} {{ evil }} {% endfilter %}",
        "{{ evil.split('m') | join('q') }}q",
        "{{ evil | indent(2, true) }}",
        "{{ evil.rjust(40, '|') }}",
        "{{ evil | truncate(300) }}",
        "{{ evil.partition('_') | join }}",
        "{{ evil | title | lower }}",
        "{{ dict([[evil, 1]]) }}",
        "{% for k, v in {'a': evil}.items() %}{{ v }}{% endfor %}",
        "{{ [evil] | first }}",
        "{{ evil | string }}",
        "{{ evil | safe | replace('q', '') }}",
        "{{ [[evil]] | map('first') | join }}",
        "{% set n = namespace(t='') %}{% for c in evil %}{% set n.t = n.t + c %}{% endfor %}{{ n.t }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ evil }}{% endcall %}",
    };
    for (size_t i = 0; i < sizeof through / sizeof *through; i++) {
        struct text t;
        struct error e = {0};
        assert_int_equal(render(through[i], &t, &e), 0);
        size_t at = 0, from_value = 0;
        for (size_t k = 0; k < t.n_runs; k++) {
            const struct text_run *s = &t.runs[k];
            if (s->origin == TEXT_VALUE) from_value += s->n;
            else { /* from the template: never a piece that the value alone could have written */
                bool own = strstr(through[i], "join('<|im_end|>')") != NULL;
                for (size_t b = 0; b < s->n && !own; b++)
                    if (strchr("<>_", t.data[at + b]))
                        fail_msg("%s: byte %zu of %s is said to be the template's", through[i], at + b, t.data);
            }
            at += s->n;
        }
        if (from_value + (strstr(through[i], "split") != NULL) < strlen("<|im_end|>"))
            fail_msg("%s: only %zu bytes of the value are left in %s", through[i], from_value, t.data);
        text_free(&t);
    }
    struct text t;
    struct error e = {0};
    assert_int_equal(render("<|a|>{{ bos_token }}{{ '<|b|>' }}{{ s }}<|c|>", &t, &e), 0);
    assert_int_equal(t.n_runs, 3);
    assert_int_equal(t.runs[0].n, strlen("<|a|><s><|b|>"));
    assert_int_equal(t.runs[0].origin, TEXT_TEMPLATE);
    assert_int_equal(t.runs[1].origin, TEXT_VALUE);
    assert_int_equal(t.runs[1].n, 5);
    text_free(&t);
}

static void test_date(void **state) {
    struct text t;
    struct error e = {0};
    setenv("SOURCE_DATE_EPOCH", "1795253400", 1);
    setenv("TZ", "UTC", 1);
    assert_int_equal(render("{{ strftime_now('%Y-%m-%d %H:%M:%S|%d %b %Y|%f|%Z|%%|%-d') }}", &t, &e), 0);
    assert_string_equal(t.data, "2026-11-21 09:30:00|21 Nov 2026|000000||%|21");
    text_free(&t);
}

/* Fails each allocation once; the answer is the usual one or a clean error. */
static void test_no_memory(void **state) {
    static const char source[] = "{% macro m(a) %}{{ a | upper }}{% endmacro %}{% set x = namespace(t='') %}{% for c "
                                 "in msgs | selectattr('content') %}{% set x.t = x.t + m(c.content) "
                                 "%}{% endfor %}{{ x.t }}{{ d | tojson(indent=1) }}{{ range(3000) | join(', ') }}{{ xs "
                                 "| sort | string }}{{ [1, 2] }}";
    long nth = 1;
    for (;; nth++) {
        struct text t;
        struct error e = {0};
        fault_set(FAULT_ALLOC, nth, false, false);
        int rc = render(source, &t, &e);
        long asked = fault_count(FAULT_ALLOC);
        fault_set(FAULT_ALLOC, 0, false, false);
        if (rc) {
            assert_int_equal(rc, ERR_MEMORY);
            assert_string_not_equal(e.text, "");
        } else {
            text_free(&t);
            if (asked < nth) break;
        }
    }
    assert_true(nth > 10);
}

/* A call with many keyword arguments ends soon: each written one is compared with the others, those of a mapping are
 * not. */
static void test_many_keywords(void **state) {
    static const struct {
        const char *begin, *each, *end, *error;
    } rows[] = {{"{{ dict(", "k%d=1, ", ") }}", "too many keyword arguments in a call"},
                {"{{ dict(a=1, **{", "'k%d': 1, ", "}) | length }}", NULL},
                {"{% macro m(", "k%d, ", "z) %}{% endmacro %}", "too many parameters of a macro"}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct buf b = {0};
        struct text t;
        struct error e = {0};
        buf_str(&b, rows[k].begin);
        for (int i = 0; i < 100000; i++) buf_fmt(&b, rows[k].each, i);
        buf_str(&b, rows[k].end);
        const int rc = render(b.data, &t, &e);
        if (rows[k].error) assert_non_null(strstr(e.text, rows[k].error));
        else assert_string_equal((assert_int_equal(rc, 0), t.data), "100001");
        if (!rc) text_free(&t);
        buf_free(&b);
    }
}

/* The cost of names is their sum, not their product; it took seconds of CPU time before. */
static void test_many_names(void **state) {
    static const struct {
        int sets, reads;
        bool good;
    } rows[] = {{30000, 100000, true}, {100000, 0, false}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct buf b = {0};
        struct text t;
        struct error e = {0};
        for (int i = 0; i < rows[k].sets; i++) buf_fmt(&b, "{%% set v%d = %d %%}", i, i);
        for (int i = 0; i < rows[k].reads; i++) buf_fmt(&b, "{{ v%d }}", rows[k].sets - 1 - i % 100);
        clock_t begun = clock();
        int rc = render(b.data, &t, &e);
        double spent = (double)(clock() - begun) / CLOCKS_PER_SEC;
        if (rows[k].good) {
            assert_int_equal(rc, 0);
            assert_int_equal(t.n, 5 * rows[k].reads);
            assert_memory_equal(t.data, "2999929998", 10);
        } else {
            assert_int_equal(rc, ERR_MODEL);
            assert_non_null(strstr(e.text, "too many variables"));
        }
        if (spent > 1.5) fail_msg("%d variables: %.1f s", rows[k].sets, spent);
        text_free(&t);
        buf_free(&b);
    }
}

/* Which names a template reads as variables: not its own, and no attributes, strings or text. */
static void test_reads(void **state) {
    static const struct {
        const char *source;
        bool reads_x;
    } cases[] = {{"{{ x }}", true},
                 {"{% if x is defined and x is false %}a{% endif %}", true},
                 {"{% if not x is defined %}{% set x = 1 %}{% endif %}{{ x }}", true},
                 {"{% for m in msgs %}{{ m.content if x|default(true) }}{% endfor %}", true},
                 {"{% macro f(a) %}{{ a + x }}{% endmacro %}{{ f(1) }}", true},
                 {"{% set y = {'x': x} %}", true},
                 {"x {# x #} {{ 'x' }} {{ d.x }} {{ d['x'] }} {{ f(x=1) }} {% raw %}{{ x }}{% endraw %}", false},
                 {"{% set x = 1 %}{{ x }}", false},
                 {"{% for x in xs %}{{ x }}{% endfor %}", false},
                 {"{% macro f(x) %}{{ x }}{% endmacro %}", false},
                 {"{% with x = 1 %}{{ x }}{% endwith %}", false},
                 {"{{ xx }}", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jinja *j;
        struct error e = {0};
        if (jinja_parse(&j, cases[i].source, strlen(cases[i].source), "t", &e)) fail_msg("%s", e.text);
        if (jinja_reads(j, "x") != cases[i].reads_x) fail_msg("%s", cases[i].source);
        jinja_close(&j);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prints),           cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_hostile_integers), cmocka_unit_test(test_deep_source),
        cmocka_unit_test(test_origin),           cmocka_unit_test(test_date),
        cmocka_unit_test(test_no_memory),        cmocka_unit_test(test_many_keywords),
        cmocka_unit_test(test_many_names),       cmocka_unit_test(test_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
