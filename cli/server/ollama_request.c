/* Requests of Ollama's /api/chat and /api/generate, as described at https://docs.ollama.com/api. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/server/api_format.h"
#include "cli/server/api_images.h"
#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"
#include "cli/server/ollama.h"

enum { CHAT = 1, GENERATE = 2 }; /* forms */
static const struct api_member members[] = {
    API_OTHER("messages", .forms = CHAT),
    API_OTHER("tools", .forms = CHAT),
    API_OTHER("prompt", .forms = GENERATE),
    API_OTHER("system", .forms = GENERATE),
    API_OTHER("raw", .forms = GENERATE),
    API_OTHER("options"),
    API_OTHER("format"),
    API_OTHER("think"),
    API_VALUE("model", MEMBER_TEXT, model),
    API_VALUE("stream", MEMBER_FLAG, stream),
    API_VALUE("logprobs", MEMBER_FLAG, logprobs),
    API_VALUE("top_logprobs", MEMBER_INTEGER, n_top_logprobs, 0, MAX_TOP_LOGPROBS),
    API_OTHER("keep_alive"),
    API_NOTHING("truncate"),
    API_NOTHING("shift"),
    API_OTHER("images", .forms = GENERATE),
    {.name = "suffix", .kind = MEMBER_TEXT, .offset = offsetof(struct api_request, suffix), .forms = GENERATE},
    API_REFUSED("template", 0, "the model's own template is used"),
    API_REFUSED("context", 0, "send the conversation to /api/chat"),
};
static const struct api_member options[] = {
    API_SAMPLING,
    API_VALUE("num_predict", MEMBER_LIMIT, max_tokens, -2),
    {.name = "stop", .kind = MEMBER_STOP},
    API_NOTHING("num_ctx"),
    API_NOTHING("num_keep"),
    API_NOTHING("num_batch"),
    API_NOTHING("num_gpu"),
    API_NOTHING("main_gpu"),
    API_NOTHING("num_thread"),
    API_NOTHING("numa"),
    API_NOTHING("low_vram"),
    API_NOTHING("use_mmap"),
    API_NOTHING("use_mlock"),
    API_NOTHING("vocab_only"),
    API_NOTHING("f16_kv"),
    API_NOTHING("repeat_last_n"),
    API_NOTHING("penalize_newline"),
    API_NOTHING("mirostat_eta"),
    API_NOTHING("mirostat_tau"),
    API_REFUSED("typical_p", 1, "sampling uses temperature, top_k, top_p and min_p"),
    API_REFUSED("tfs_z", 1, "sampling uses temperature, top_k, top_p and min_p"),
    API_REFUSED("mirostat", 0, "sampling uses temperature, top_k, top_p and min_p"),
};

/* Removes the tag that Ollama's names have. */
static int trim_model(struct api_request *r, struct error *e) {
    static const char tag[] = ":latest";
    const uint32_t n_tag = sizeof tag - 1;
    const struct json *m = r->model;
    struct json *copy;
    if (!m || m->n <= n_tag || memcmp(m->string + m->n - n_tag, tag, n_tag) != 0) return 0;
    if (!(copy = arena_alloc(&r->arena, sizeof *copy))) return error_set(e, ERR_MEMORY, "no memory");
    *copy = *m;
    copy->n -= n_tag;
    r->model = copy;
    return 0;
}

/* Reads seconds, or a duration as Go writes it: "5m", "1h30m", "-1". */
static int read_keep_alive(struct api_request *r, const struct json *j, struct error *e) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"h", 3600}, {"m", 60}, {"s", 1}};
    char text[40] = "", *at = text;
    if (!api_members_present(j)) return 0;
    r->has_keep = true;
    r->keep_s = json_num(j, 0);
    if (j->type == JSON_INT || j->type == JSON_FLOAT) return 0;
    if (j->type == JSON_STRING && j->n < sizeof text) memcpy(text, j->string, j->n);
    const double sign = *at == '-' ? -1 : 1;
    at += *at == '-' || *at == '+';
    bool is_valid = strspn(at, "0123456789.") > 0;
    while (is_valid && *at) {
        char *end;
        size_t u = 0;
        const double number = strtod(at, &end);
        while (u < sizeof units / sizeof *units && strncmp(end, units[u].unit, strlen(units[u].unit)) != 0) u++;
        is_valid = end > at && strspn(at, "0123456789.") == (size_t)(end - at) &&
                   (u < sizeof units / sizeof *units || (at == text + (sign < 0) && !*end));
        r->keep_s += sign * number * (*end && is_valid ? units[u].seconds : 1);
        at = end + (*end && is_valid ? strlen(units[u].unit) : 0);
    }
    return is_valid ? 0 : error_set(e, ERR_USAGE, "keep_alive: must be seconds, or a duration such as 5m");
}

static int read_format(struct api_request *r, const struct json *format, struct error *e) {
    if (api_members_empty(format)) return 0;
    if (format->type == JSON_STRING && !json_is(format, "json"))
        return error_set(e, ERR_USAGE, "format: must be json or a schema");
    r->has_source = true;
    return api_format_take(&r->arena, "format", format,
                           format->type == JSON_STRING ? SOURCE_JSON_OBJECT : SOURCE_SCHEMA, &r->source, e);
}

/* Reads what chats and texts have in common. think: true, false, or how much. */
static int read_parameters(struct api_request *r, const struct json *root, int form, bool strict,
                           struct api_template_options *o, struct error *e) {
    const struct api_member_table table = {members, sizeof members / sizeof *members, "", form,
                                           form == CHAT ? "/api/generate" : "/api/chat"};
    const struct json *given = json_get(root, "options"), *think = json_get(root, "think");
    *o = (struct api_template_options){.think = -1};
    r->stream = true;
    TRY(api_members_read(r, root, &table, strict, e));
    if (api_members_present(given) && given->type != JSON_OBJECT)
        return error_set(e, ERR_USAGE, "options: must be an object");
    if (api_members_present(given))
        TRY(api_members_read(r, given,
                             &(struct api_member_table){options, sizeof options / sizeof *options, "options.", 0, NULL},
                             strict, e));
    if (api_members_present(think) && think->type == JSON_STRING) o->effort = think, o->think = 1;
    else if (api_members_present(think) && think->type != JSON_BOOL)
        return error_set(e, ERR_USAGE, "think: must be true, false, low, medium or high");
    else if (api_members_present(think)) o->think = think->boolean;
    if (r->n_top_logprobs && !r->logprobs) return error_set(e, ERR_USAGE, "top_logprobs: needs \"logprobs\": true");
    TRY(trim_model(r, e));
    TRY(read_keep_alive(r, json_get(root, "keep_alive"), e));
    return read_format(r, json_get(root, "format"), e);
}

/* --- chat ------------------------------------------------------------------------------------- */

static int read_calls(struct api_request *r, const struct json *calls, uint32_t message, struct json *out,
                      struct error *e) {
    struct json *list;
    if (calls->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "messages[%u].tool_calls: must be an array", message);
    TRY(api_messages_array(r, calls->n, out, &list, e));
    for (uint32_t i = 0; i < calls->n; i++) {
        const struct json *f = json_get(&calls->items[i], "function"), *name = json_get(f, "name");
        if (!name || name->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "messages[%u].tool_calls[%u].function.name: missing", message, i);
        TRY(api_messages_call(r, json_get(&calls->items[i], "id"), name, json_get(f, "arguments"), &list[i], e));
    }
    return 0;
}

static int add_message(struct api_messages *m, const struct json *from, uint32_t i, struct error *e) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    const struct json *role = json_get(from, "role"), *content = json_get(from, "content"),
                      *calls = json_get(from, "tool_calls");
    const struct json *thought = json_get(from, "thinking"), *name = json_get(from, "tool_name"),
                      *id = json_get(from, "tool_call_id"), *images = json_get(from, "images"),
                      empty = api_messages_word("");
    struct json list, shown;
    size_t k = 0;
    while (k < 4 && !json_is(role, roles[k])) k++;
    if (k == 4) return error_set(e, ERR_USAGE, "messages[%u].role: must be system, user, assistant or tool", i);
    if (!api_members_present(content)) content = &empty;
    if (content->type != JSON_STRING) return error_set(e, ERR_USAGE, "messages[%u].content: must be text", i);
    if (!api_members_empty(images)) {
        char where[40];
        snprintf(where, sizeof where, "messages[%u].images", i);
        TRY(api_images_beside(m->request, content, images, where, &shown, e));
        content = &shown;
    }
    TRY(api_messages_add(m, roles[k], content, e));
    if (thought && thought->type == JSON_STRING && thought->n) api_messages_set(m, "reasoning_content", thought);
    if (name && name->type == JSON_STRING) api_messages_set(m, "name", name);
    if (id && id->type == JSON_STRING && id->n) api_messages_set(m, "tool_call_id", id);
    if (api_members_empty(calls)) return 0;
    TRY(read_calls(m->request, calls, i, &list, e));
    api_messages_set(m, "tool_calls", &list);
    return 0;
}

static int check_tools(const struct json *tools, struct error *e) {
    if (!api_members_present(tools)) return 0;
    if (tools->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "tools: must be an array");
    for (uint32_t i = 0; i < tools->n; i++) TRY(api_messages_check_tool(&tools->items[i], i, e));
    return 0;
}

static int parse_chat(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                      struct error *e) {
    struct json root, messages;
    struct api_messages m;
    struct api_template_options o;
    TRY(api_parse_root(r, body, n, &root, e));
    const struct json *list = json_get(&root, "messages");
    r->tools = json_get(&root, "tools");
    TRY(check_tools(r->tools, e));
    TRY(read_parameters(r, &root, CHAT, strict, &o, e));
    if (api_members_empty(list)) return r->load_only = true, 0;
    if (list->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "messages: must be an array");
    TRY(api_messages_open(&m, r, list->n, e));
    for (uint32_t i = 0; i < list->n; i++) TRY(add_message(&m, &list->items[i], i, e));
    messages = (struct json){.type = JSON_ARRAY, .n = m.n, .items = m.items};
    return api_messages_finish(r, chat, &messages, &o, e);
}

/* --- generate --------------------------------------------------------------------------------- */

static int read_string(const struct json *root, const char *name, const struct json **out, struct error *e) {
    *out = json_get(root, name);
    if (api_members_present(*out) && (*out)->type != JSON_STRING)
        return error_set(e, ERR_USAGE, "%s: must be a string", name);
    if (api_members_empty(*out)) *out = NULL;
    return 0;
}

static int parse_generate(struct api_request *r, const char *body, size_t n, const struct chat_template *chat,
                          bool strict, struct error *e) {
    const struct json *prompt, *system, empty = api_messages_word("");
    struct json root, messages, shown, *copy;
    struct api_messages m;
    struct api_template_options o;
    bool raw = false;
    TRY(api_parse_root(r, body, n, &root, e));
    TRY(read_parameters(r, &root, GENERATE, strict, &o, e));
    TRY(read_string(&root, "prompt", &prompt, e));
    TRY(read_string(&root, "system", &system, e));
    TRY(api_members_flag(&root, "raw", &raw, e));
    r->no_tool_calls = true;
    if (r->suffix && !r->suffix->n) r->suffix = NULL;
    const struct json *images = json_get(&root, "images");
    if (!prompt && (r->suffix || !api_members_empty(images))) prompt = &empty;
    if (!prompt) return r->load_only = true, 0;
    if (raw || r->suffix) {
        if (!api_members_empty(images))
            return error_set(e, ERR_USAGE, "images: need the model's chat template; leave out raw and suffix");
        if (!(copy = arena_alloc(&r->arena, sizeof *copy))) return error_set(e, ERR_MEMORY, "no memory");
        *copy = *prompt;
        r->raw_prompt = copy;
        return 0;
    }
    TRY(api_messages_open(&m, r, 2, e));
    if (system) TRY(api_messages_add(&m, "system", system, e));
    if (!api_members_empty(images)) {
        TRY(api_images_beside(r, prompt, images, "images", &shown, e));
        prompt = &shown;
    }
    TRY(api_messages_add(&m, "user", prompt, e));
    messages = (struct json){.type = JSON_ARRAY, .n = m.n, .items = m.items};
    return api_messages_finish(r, chat, &messages, &o, e);
}

/* Spaces before the next line's object keep connections open that a proxy closes when nothing is sent. */
#define OLLAMA(function) \
    { \
        .id_prefix = "ollama-", .stream_type = "application/x-ndjson", .still_here = " ", .parse = function, \
        .begin = ollama_begin, .delta = ollama_delta, .finish = ollama_finish, .end = ollama_end, .fail = ollama_fail, \
        .whole = ollama_whole, .loaded = ollama_put_loaded, .error = ollama_error \
    }
const struct api_protocol ollama_chat = OLLAMA(parse_chat), ollama_generate = OLLAMA(parse_generate);
