/* Any JSON as the conversation of templates that use every feature. No text from the JSON may be marked as the
 * template's. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/jinja/jinja.h"

static const char *const templates[] = {
    "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{% if m.tool_calls %}{% for c in m.tool_calls %}{{ "
    "c.function.name }}{{ c.function.arguments | "
    "tojson }}"
    "{% endfor %}{% endif %}{% endfor %}",
    "{{ messages | tojson(indent=2, sort_keys=true) }}{{ messages }}{{ messages | string | length }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }}{% endfor %}{{ d | dictsort }}{{ d | tojson(ensure_ascii=true) }}",
    "{{ xs | sort }}{{ xs | unique | list }}{{ xs[::-1] }}{{ xs | batch(2) | list }}{{ xs | sum }}{{ xs | "
    "map('string') | join('-') }}{{ xs | max }}",
    "{{ s | upper | title }}{{ s | lower | capitalize }}{{ s.split() }}{{ s.splitlines() }}{{ s[1:-1] }}{{ s | "
    "indent(2) }}{{ s.title() }}"
    "{{ s | truncate(7) }}{{ s.rjust(20) }}{{ s | e }}{{ s.strip('ab') }}{{ s | replace('a', s) }}",
    "{{ '%s|%r|%d' % (s, xs, n) }}{{ '{:>9}'.format(s) }}{{ n | round(2) }}{{ n ** 2 }}{{ n // 3 }}{{ n % 7 }}{{ -n "
    "}}{{ s | int }}{{ s | float }}",
    "{{ s % xs }}{{ s.format(n, xs, a=d) }}",
    "{{ messages | groupby('role') | list }}{{ messages | selectattr('content', 'string') | map(attribute='content') | "
    "list }}{{ messages | "
    "sort(attribute='role,content') }}",
};
enum { n_templates = sizeof templates / sizeof *templates };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct jinja *j[n_templates];
    struct arena a = {0};
    struct json vars;
    struct error e = {0};
    for (int i = 0; i < n_templates; i++)
        if (!j[i] && jinja_parse(&j[i], templates[i], strlen(templates[i]), "fuzz", &e)) abort();
    if (!json_parse(&a, (const char *)data, size, 0, "fuzz", &vars, &e)) {
        for (int i = 0; i < n_templates; i++) {
            struct text t;
            if (jinja_render(j[i], &vars, NULL, &t, &e)) continue;
            size_t n = 0;
            for (size_t k = 0; k < t.n_runs; k++) n += t.runs[k].n;
            if (n != t.n) abort();
            text_free(&t);
        }
    }
    arena_free(&a);
    return 0;
}
