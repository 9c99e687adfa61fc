/* A request of any protocol: any bytes are either what a turn needs, or an error with a message. A conversation that
 * passes can be written and read again. An input that begins with "tool:" is model output instead: the arguments of its
 * calls must be JSON objects. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/server/api.h"

static void calls(const char *s, size_t n, const struct json *tools) {
    struct tool_calls c = {0};
    int rc = tool_calls_parse(s, n, tools, &c);
    if (rc && c.n) abort();
    for (size_t i = 0; i < c.n; i++)
        if (!c.v[i].arguments.len || c.v[i].arguments.data[0] != '{') abort();
    tool_calls_free(&c);
}

/* Without and with tools, whose types tell text from JSON. */
static void tools(const char *s, size_t n) {
    static const char types[] = "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {\"type\": "
                                "\"string\"}, \"b\": {\"type\": \"integer\"}, \"c\": {}}}}}]";
    struct arena arena = {0};
    struct json list;
    if (json_parse(&arena, types, sizeof types - 1, 0, "tools", &list, NULL)) abort();
    calls(s, n, NULL);
    calls(s, n, &list);
    arena_free(&arena);
}

static void request(const struct api_protocol *p, const char *body, size_t size, bool strict) {
    struct api_request r;
    struct error e = {0};
    struct buf b = {0};
    int rc = p->parse(&r, body, size, NULL, strict, &e);
    if (rc && (rc != e.code || !*e.text || rc != ERR_USAGE)) abort();
    if (!rc && !r.raw_prompt && !r.load_only) {
        struct arena arena = {0};
        struct json again;
        const struct json *messages = json_get(&r.template_input, "messages");
        if (!messages || messages->type != JSON_ARRAY || !messages->n || json_write(&b, &r.template_input)) abort();
        if (json_parse(&arena, b.data, b.len, 0, "again", &again, &e)) abort();
        arena_free(&arena);
    }
    api_free(&r);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct api_protocol *const protocols[] = {&openai_chat,        &openai_text, &openai_responses,
                                                           &anthropic_messages, &ollama_chat, &ollama_generate,
                                                           &llama_infill};
    char *copy = malloc(size + 1); /* as a request body is: not NUL-terminated */
    if (!copy) return 0;
    memcpy(copy, data, size);
    if (size > 5 && !memcmp(data, "tool:", 5)) tools(copy + 5, size - 5);
    for (size_t i = 0; i < sizeof protocols / sizeof *protocols; i++)
        for (int strict = 0; strict < 2; strict++) request(protocols[i], copy, size, strict);
    free(copy);
    return 0;
}
