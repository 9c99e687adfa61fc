/* Requests of Anthropic's messages, as described at https://docs.anthropic.com/en/api/messages. */
#include <stdio.h>
#include <string.h>

#include "cli/server/anthropic.h"
#include "cli/server/anthropic_blocks.h"
#include "cli/server/api_format.h"
#include "cli/server/api_images.h"
#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"

static const struct api_member members[] = {
    API_OTHER("messages"),
    API_OTHER("system"),
    API_OTHER("tools"),
    API_OTHER("tool_choice"),
    API_OTHER("thinking"),
    API_OTHER("output_config"),
    API_OTHER("output_format"),
    API_OTHER("metadata"),
    API_VALUE("model", MEMBER_TEXT, model),
    API_VALUE("stream", MEMBER_FLAG, stream),
    API_VALUE("max_tokens", MEMBER_LIMIT, max_tokens),
    API_TEMPERATURE,
    API_TOP_K,
    {.name = "stop_sequences", .kind = MEMBER_STOP},
    API_NOTHING("service_tier"),
    API_NOTHING("cache_control"),
    API_NOTHING("inference_geo"),
    API_NOTHING("context_management"),
    API_REFUSED("container", 0, "no code is run"),
    API_REFUSED("mcp_servers", 0, "tools are the client's"),
};

/* --- content ---------------------------------------------------------------------------------- */

static bool block_is(const struct json *block, const char *type) { return json_is(json_get(block, "type"), type); }

/* Joins a member of all blocks of a type among blocks [from, to). n_found: their number. */
static int join_blocks(struct api_request *r, const struct json *blocks, uint32_t from, uint32_t to, const char *type,
                       const char *member, struct json *out, uint32_t *n_found, struct error *e) {
    struct buf b = {0};
    *n_found = 0;
    for (uint32_t i = from; i < to; i++) {
        const struct json *text = json_get(&blocks->items[i], member);
        if (!block_is(&blocks->items[i], type) || !text || text->type != JSON_STRING) continue;
        buf_add(&b, text->string, text->n);
        ++*n_found;
    }
    return api_messages_take(r, &b, out, e);
}

/* Checks the types of blocks, and that each has the member that its type needs. */
static int check_blocks(const struct json *blocks, const char *where, bool assistant, struct error *e) {
    static const struct {
        const char *type, *member;
        bool user, assistant;
        enum json_type is;
    } known[] = {{"text", "text", true, true, JSON_STRING},
                 {"image", "source", true, false, JSON_OBJECT},
                 {"tool_result", "tool_use_id", true, false, JSON_STRING},
                 {"tool_use", "name", false, true, JSON_STRING},
                 {"thinking", "thinking", false, true, JSON_STRING},
                 {"redacted_thinking", NULL, false, true, JSON_NULL}};
    for (uint32_t i = 0; i < blocks->n; i++) {
        const struct json *type = json_get(&blocks->items[i], "type"), *member;
        size_t k = 0;
        if (!type || type->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "%s[%u]: a block with a type is required", where, i);
        while (k < sizeof known / sizeof *known &&
               (!json_is(type, known[k].type) || !(assistant ? known[k].assistant : known[k].user)))
            k++;
        if (k == sizeof known / sizeof *known)
            return error_set(e, ERR_USAGE, "%s[%u]: %.*s is not supported: only %s are", where, i,
                             (int)(type->n < 60 ? type->n : 60), type->string,
                             assistant ? "text, tool_use and thinking" : "text, image and tool_result");
        if (!known[k].member) continue;
        member = json_get(&blocks->items[i], known[k].member);
        if (!member || member->type != known[k].is)
            return error_set(e, ERR_USAGE, "%s[%u].%s: missing", where, i, known[k].member);
    }
    return 0;
}

/* The text of a tool's result or of a system prompt: a string, or text blocks; takes_images: or images among them. */
static int read_text(struct api_request *r, const struct json *j, const char *where, bool takes_images,
                     struct json *out, struct error *e) {
    *out = api_messages_word("");
    if (!api_members_present(j)) return 0;
    if (j->type == JSON_STRING) return *out = *j, 0;
    if (j->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "%s: must be text or an array of blocks", where);
    if (!takes_images) return api_messages_join(r, j, "text", "", where, out, e);
    struct json plain;
    TRY(anthropic_plain_blocks(r, j, where, &plain, e));
    return api_images_join(r, &plain, "text", where, out, e);
}
/* The same for a system prompt. */
static int read_system(struct api_request *r, const struct json *j, const char *where, struct json *out,
                       struct error *e) {
    const struct json kept = j ? api_messages_without_headers(j) : (struct json){0};
    return read_text(r, &kept, where, false, out, e);
}

/* A user's blocks: each result of a tool is a message of its own, and so is the text between them. */
static int add_user(struct api_messages *m, const struct json *blocks, const char *where, struct error *e) {
    struct json text;
    uint32_t from = 0, n;
    for (uint32_t i = 0; i <= blocks->n; i++) {
        const struct json *block = &blocks->items[i];
        if (i < blocks->n && !block_is(block, "tool_result")) continue;
        const struct json between = {.type = JSON_ARRAY, .n = i - from, .items = blocks->items + from};
        n = i - from;
        if (n) TRY(api_images_join(m->request, &between, "text", where, &text, e));
        if (n) TRY(api_messages_add(m, "user", &text, e));
        from = i + 1;
        if (i == blocks->n) break;
        char inner[80];
        snprintf(inner, sizeof inner, "%s[%u].content", where, i);
        TRY(read_text(m->request, json_get(block, "content"), inner, true, &text, e));
        TRY(api_messages_add(m, "tool", &text, e));
        api_messages_set(m, "tool_call_id", json_get(block, "tool_use_id"));
    }
    return 0;
}

static int add_assistant(struct api_messages *m, const struct json *blocks, struct error *e) {
    struct api_request *r = m->request;
    struct json text, thought, calls, *list;
    uint32_t n_text, n_thought;
    TRY(join_blocks(r, blocks, 0, blocks->n, "text", "text", &text, &n_text, e));
    TRY(join_blocks(r, blocks, 0, blocks->n, "thinking", "thinking", &thought, &n_thought, e));
    TRY(api_messages_array(r, blocks->n, &calls, &list, e));
    calls.n = 0;
    for (uint32_t i = 0; i < blocks->n; i++) {
        const struct json *block = &blocks->items[i];
        if (block_is(block, "tool_use"))
            TRY(api_messages_call(r, json_get(block, "id"), json_get(block, "name"), json_get(block, "input"),
                                  &list[calls.n++], e));
    }
    TRY(api_messages_add(m, "assistant", &text, e));
    if (n_thought) api_messages_set(m, "reasoning_content", &thought);
    if (calls.n) api_messages_set(m, "tool_calls", &calls);
    return 0;
}

static int add_message(struct api_messages *m, const struct json *from, uint32_t i, struct error *e) {
    const struct json *content = json_get(from, "content"), *role = json_get(from, "role");
    const bool assistant = json_is(role, "assistant");
    struct json text;
    char where[40];
    snprintf(where, sizeof where, "messages[%u].content", i);
    if (json_is(role, "system")) {
        TRY(read_system(m->request, content, where, &text, e));
        return api_messages_add(m, "system", &text, e);
    }
    if (!assistant && !json_is(role, "user"))
        return error_set(e, ERR_USAGE, "messages[%u].role: must be user, assistant or system", i);
    if (content && content->type == JSON_STRING)
        return api_messages_add(m, assistant ? "assistant" : "user", content, e);
    if (!content || content->type != JSON_ARRAY)
        return error_set(e, ERR_USAGE, "%s: must be text or an array of blocks", where);
    if (!assistant && !content->n) return error_set(e, ERR_USAGE, "%s: must not be empty", where);
    struct json plain;
    TRY(anthropic_plain_blocks(m->request, content, where, &plain, e));
    TRY(check_blocks(&plain, where, assistant, e));
    return assistant ? add_assistant(m, &plain, e) : add_user(m, &plain, where, e);
}

static int read_messages(struct api_request *r, const struct json *root, struct json *out, struct error *e) {
    const struct json *list = json_get(root, "messages"), *system = json_get(root, "system");
    struct api_messages m;
    struct json text;
    uint32_t cap = 1;
    if (!list || list->type != JSON_ARRAY || !list->n)
        return error_set(e, ERR_USAGE, "messages: a non-empty array is required");
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *content = json_get(&list->items[i], "content");
        cap += content && content->type == JSON_ARRAY ? 2 * content->n + 1 : 1;
    }
    TRY(api_messages_open(&m, r, cap, e));
    TRY(read_system(r, system, "system", &text, e));
    if (text.n) TRY(api_messages_add(&m, "system", &text, e));
    for (uint32_t i = 0; i < list->n; i++) TRY(add_message(&m, &list->items[i], i, e));
    *out = (struct json){.type = JSON_ARRAY, .n = m.n, .items = m.items};
    return 0;
}

/* An assistant's text at the end is the beginning of the answer. */
static void take_partial_answer(struct api_request *r, struct json *messages) {
    const struct json *last = messages->n ? &messages->items[messages->n - 1] : NULL, *text = json_get(last, "content");
    if (messages->n < 2 || !json_is(json_get(last, "role"), "assistant") || !text->n || json_get(last, "tool_calls") ||
        json_get(last, "reasoning_content"))
        return;
    r->partial_answer = text;
    messages->n--;
}

/* --- tools and options ------------------------------------------------------------------------ */

static int read_choice(struct api_request *r, const struct json *choice, struct error *e) {
    const struct json *type = json_get(choice, "type"), *name = json_get(choice, "name");
    if (!api_members_present(choice)) return 0;
    TRY(api_members_flag(choice, "disable_parallel_tool_use", &r->single_tool_call, e));
    if (json_is(type, "auto")) return 0;
    if (json_is(type, "none")) return r->tool_choice = API_TOOLS_NONE, 0;
    if (!json_is(type, "any") && (!json_is(type, "tool") || !name || name->type != JSON_STRING))
        return error_set(e, ERR_USAGE, "tool_choice.type: must be auto, any, none, or tool with a name");
    r->tool_choice = API_TOOLS_REQUIRED;
    r->forced_tool = json_is(type, "tool") ? name : NULL;
    return 0;
}

static int read_tools(struct api_request *r, const struct json *root, bool strict, struct error *e) {
    const struct json *from = json_get(root, "tools");
    struct json *tools, *list;
    TRY(read_choice(r, json_get(root, "tool_choice"), e));
    TRY(api_messages_open_tools(r, from, &tools, &list, e));
    for (uint32_t i = 0; tools && i < from->n; i++) {
        const struct json *t = &from->items[i], *type = json_get(t, "type"), *name = json_get(t, "name");
        if (api_members_present(type) && !json_is(type, "custom")) {
            TRY(api_messages_skip_tool(r, i, type, "custom, with a name and an input_schema,", strict, e));
            continue;
        }
        if (!name || name->type != JSON_STRING) return error_set(e, ERR_USAGE, "tools[%u].name: missing", i);
        TRY(api_messages_tool(r, name, json_get(t, "description"), json_get(t, "input_schema"), &list[tools->n++], e));
    }
    r->tools = tools;
    return 0;
}

static int read_format(struct api_request *r, const struct json *root, struct error *e) {
    const struct json *format = json_get(root, "output_format");
    if (!api_members_present(format)) format = json_path(root, "output_config.format");
    if (!api_members_present(format)) return 0;
    if (!json_is(json_get(format, "type"), "json_schema") || !json_get(format, "schema"))
        return error_set(e, ERR_USAGE, "output_config.format: must have the type json_schema and a schema");
    if (r->partial_answer)
        return error_set(e, ERR_USAGE, "output_config.format: cannot be combined with a begun answer");
    r->has_source = true;
    return api_format_take(&r->arena, "output_config.format.schema", json_get(format, "schema"), SOURCE_SCHEMA,
                           &r->source, e);
}

static int parse(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                 struct error *e) {
    const struct api_member_table table = {.rows = members, .n = sizeof members / sizeof *members, .prefix = ""};
    struct api_template_options options = {.think = -1};
    struct json root, messages;
    TRY(api_parse_root(r, body, n, &root, e));
    TRY(api_members_read(r, &root, &table, strict, e));
    TRY(read_messages(r, &root, &messages, e));
    take_partial_answer(r, &messages);
    TRY(read_tools(r, &root, strict, e));
    TRY(read_format(r, &root, e));
    TRY(api_messages_read_thinking(json_get(&root, "thinking"), &options.think, e));
    options.effort = json_path(&root, "output_config.effort");
    const struct json *user = json_path(&root, "metadata.user_id");
    if (user && user->type == JSON_STRING) r->user = user;
    return api_messages_finish(r, chat, &messages, &options, e);
}

const struct api_protocol anthropic_messages = {.id_prefix = "msg_",
                                                .stream_type = "text/event-stream",
                                                .has_comments = true,
                                                .still_here = "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                                                .parse = parse,
                                                .begin = anthropic_begin,
                                                .delta = anthropic_delta,
                                                .call = anthropic_call,
                                                .finish = anthropic_finish,
                                                .end = anthropic_end,
                                                .fail = anthropic_fail,
                                                .whole = anthropic_whole,
                                                .error = anthropic_error};
