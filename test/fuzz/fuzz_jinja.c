/* Any bytes as a template, rendered with a fixed conversation. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char conv[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"h\\u00e9\"}, {\"role\": \"assistant\", \"content\": "
        "\"x\", \"tool_calls\": "
        "[{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}]}], \"tools\": null, \"n\": 3, \"f\": 1.5, "
        "\"s\": \"a b\", "
        "\"xs\": [3, 1, 2], \"d\": {\"k\": [1, \"2\"], \"items\": 1}, \"add_generation_prompt\": true}";
    struct arena a = {0};
    struct json vars;
    struct jinja *j;
    struct text t;
    struct error e = {0};
    if (json_parse(&a, conv, sizeof conv - 1, 0, "conv", &vars, &e)) abort();
    if (!jinja_parse(&j, (const char *)data, size, "fuzz", &e)) {
        if (!jinja_render(j, &vars, NULL, &t, &e)) {
            size_t n = 0;
            for (size_t i = 0; i < t.n_runs; i++) n += t.runs[i].n;
            if (n != t.n) abort();
            text_free(&t);
        } else if (!e.text[0]) abort();
        jinja_close(&j);
    } else if (!e.text[0]) abort();
    arena_free(&a);
    return 0;
}
