/* Requests of OpenAI's responses, without state: every request has its whole conversation. Described at
 * https://platform.openai.com/docs/api-reference/responses. */
#include <stdio.h>
#include <string.h>

#include "cli/server/api_format.h"
#include "cli/server/api_images.h"
#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"
#include "cli/server/openai.h"
#include "cli/server/responses.h"
#include "cli/server/responses_seal.h"
#include "cli/server/responses_tools.h"

static const char why_state[] = "nothing is stored; send the whole conversation as input";
static const struct api_member members[] = {
    API_OTHER("input"),
    API_OTHER("instructions"),
    API_OTHER("tools"),
    API_OTHER("tool_choice"),
    API_OTHER("text"),
    API_OTHER("reasoning"),
    API_VALUE("model", MEMBER_TEXT, model),
    API_VALUE("user", MEMBER_TEXT, user),
    API_VALUE("safety_identifier", MEMBER_TEXT, user),
    API_VALUE("stream", MEMBER_FLAG, stream),
    API_VALUE("store", MEMBER_NO_FLAG, no_disk_cache),
    API_VALUE("parallel_tool_calls", MEMBER_NO_FLAG, single_tool_call),
    API_TEMPERATURE,
    API_VALUE("max_output_tokens", MEMBER_LIMIT, max_tokens),
    API_NOTHING("metadata"),
    API_OTHER("include"),
    API_NOTHING("service_tier"),
    API_NOTHING("prompt_cache_key"),
    API_NOTHING("prompt_cache_retention"),
    API_NOTHING("stream_options"),
    API_NOTHING("truncation"),
    API_NOTHING("max_tool_calls"),
    API_REFUSED("previous_response_id", 0, why_state),
    API_REFUSED("conversation", 0, why_state),
    API_REFUSED("background", 0, "an answer lasts as long as its connection"),
    API_REFUSED("prompt", 0, "there are no stored prompts"),
    API_REFUSED("top_logprobs", 0, "use /v1/chat/completions"),
};

/* --- input ------------------------------------------------------------------------------------ */

/* takes_images: the content may be a list of parts, with images among them; else it is a text. */
static int read_content(struct api_request *r, const struct json *content, const char *where, bool takes_images,
                        struct json *out, struct error *e) {
    static const char types[] = "input_text output_text text reasoning_text summary_text refusal";
    if (content && content->type == JSON_STRING) return *out = *content, 0;
    if (!content || content->type != JSON_ARRAY)
        return error_set(e, ERR_USAGE, "%s: must be text or an array of parts", where);
    return takes_images ? api_images_join(r, content, types, where, out, e)
                        : api_messages_join(r, content, types, "", where, out, e);
}

/* Joins two texts. */
static int join_texts(struct api_request *r, const struct json *a, const struct json *b, struct json *out,
                      struct error *e) {
    char *s = arena_alloc(&r->arena, (size_t)a->n + b->n + 1);
    if (!s) return error_set(e, ERR_MEMORY, "no memory");
    memcpy(s, a->string, a->n);
    memcpy(s + a->n, b->string, b->n);
    *out = (struct json){.type = JSON_STRING, .n = a->n + b->n, .string = s};
    return 0;
}

/* Adds thinking, which is an item of its own, to the last message. */
static int add_thought(struct api_messages *m, const struct json *thought, struct error *e) {
    struct json *last = &m->items[m->n - 1], both;
    const struct json *earlier = json_get(last, "reasoning_content");
    if (!thought->n) return 0;
    if (!earlier) return api_messages_set(m, "reasoning_content", thought), 0;
    TRY(join_texts(m->request, earlier, thought, &both, e));
    return json_set((struct json *)last->items, last->n, "reasoning_content", &both), 0;
}

/* Adds a message of the assistant, with the thinking before it. */
static int add_assistant(struct api_messages *m, const struct json *text, const struct json *thought, struct error *e) {
    TRY(api_messages_add(m, "assistant", text, e));
    return add_thought(m, thought, e);
}

static int add_message(struct api_messages *m, const struct json *item, uint32_t i, const struct json *thought,
                       struct error *e) {
    static const char *const roles[][2] = {
        {"system", "system"}, {"developer", "system"}, {"user", "user"}, {"assistant", "assistant"}};
    char where[40];
    struct json text;
    size_t k = 0;
    snprintf(where, sizeof where, "input[%u].content", i);
    while (k < 4 && !json_is(json_get(item, "role"), roles[k][0])) k++;
    if (k == 4) return error_set(e, ERR_USAGE, "input[%u].role: must be user, assistant, system or developer", i);
    if (k == 3 && !api_members_present(json_get(item, "content"))) text = api_messages_word("");
    else TRY(read_content(m->request, json_get(item, "content"), where, k == 2, &text, e));
    return k == 3 ? add_assistant(m, &text, thought, e) : api_messages_add(m, roles[k][1], &text, e);
}

/* Names the call of a tool. A kind of tool that the protocol itself defines has a type of item instead of a name. */
static int read_call_name(struct api_request *r, const struct json *item, uint32_t i, struct json *out,
                          struct error *e) {
    const struct json *name = json_get(item, "name"), *space = json_get(item, "namespace"),
                      *type = json_get(item, "type");
    if (!api_members_present(name) && !json_is(type, "function_call") && !json_is(type, "custom_tool_call"))
        return *out = *type, out->n -= (uint32_t)strlen("_call"), 0;
    if (!name || name->type != JSON_STRING) return error_set(e, ERR_USAGE, "input[%u].name: missing", i);
    if (space && space->type == JSON_STRING) return responses_tools_join(r, space, name, out, e);
    return *out = *name, 0;
}

/* Returns the arguments of a call: an object or a text, by the kind of tool. */
static const struct json *find_arguments(const struct json *item) {
    static const char *const names[] = {"arguments", "input", "action", "operation"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (api_members_present(json_get(item, names[k]))) return json_get(item, names[k]);
    return NULL;
}

/* A call of a tool. Calls that follow each other belong to one message. */
static int add_call(struct api_messages *m, const struct json *item, uint32_t i, const struct json *thought,
                    struct error *e) {
    const struct json empty = api_messages_word("");
    struct json name, *list, *last = m->n ? &m->items[m->n - 1] : NULL, calls;
    const struct json *earlier =
        last && json_is(json_get(last, "role"), "assistant") ? json_get(last, "tool_calls") : NULL;
    const uint32_t n = earlier ? earlier->n : 0;
    TRY(read_call_name(m->request, item, i, &name, e));
    TRY(api_messages_array(m->request, n + 1, &calls, &list, e));
    if (n) memcpy(list, earlier->items, n * sizeof *list);
    TRY(api_messages_call(m->request, json_get(item, "call_id"), &name, find_arguments(item), &list[n], e));
    if (!last || !json_is(json_get(last, "role"), "assistant")) TRY(add_assistant(m, &empty, thought, e));
    else TRY(add_thought(m, thought, e));
    if (earlier) json_set((struct json *)last->items, last->n, "tool_calls", &calls);
    else api_messages_set(m, "tool_calls", &calls);
    return 0;
}

/* Reads what a tool has returned: a text, parts, or data in a form of the tool's own, which the model reads as JSON. */
static int read_output(struct api_request *r, const struct json *output, const char *where, struct json *out,
                       struct error *e) {
    const bool is_parts = output && output->type == JSON_ARRAY && (!output->n || json_get(output->items, "type"));
    if (!api_members_present(output)) return *out = api_messages_word(""), 0;
    if (output->type == JSON_STRING || is_parts) return read_content(r, output, where, true, out, e);
    return api_messages_json(r, output, out, e);
}
static int add_output(struct api_messages *m, const struct json *item, uint32_t i, struct error *e) {
    const struct json *id = json_get(item, "call_id"), *output = json_get(item, "output");
    char where[40];
    struct json text;
    snprintf(where, sizeof where, "input[%u].output", i);
    const struct json *found = json_get(item, "tools"); /* of a search for tools */
    if (!output && !found) return error_set(e, ERR_USAGE, "%s: missing", where);
    TRY(output ? read_output(m->request, output, where, &text, e) : api_messages_json(m->request, found, &text, e));
    TRY(api_messages_add(m, "tool", &text, e));
    if (api_members_present(id)) api_messages_set(m, "tool_call_id", id);
    return 0;
}

/* Thinking belongs to the assistant's message after it, or to the one whose calls follow: templates show that of a turn
 * whose calls have just been answered. */
static int read_reasoning(struct api_request *r, const struct json *item, uint32_t i, struct json *thought,
                          struct error *e) {
    const struct json *content = json_get(item, "content");
    struct json text = api_messages_word("");
    char where[40];
    const bool has_content = !api_members_empty(content);
    if (!has_content) {
        TRY(responses_seal_read(r, json_get(item, "encrypted_content"), &text, e));
        content = json_get(item, "summary");
    }
    snprintf(where, sizeof where, "input[%u].%s", i, has_content ? "content" : "summary");
    if (!text.n && !api_members_empty(content)) TRY(read_content(r, content, where, false, &text, e));
    return join_texts(r, thought, &text, thought, e);
}

/* Whether another server has made the item, for itself: a call that it has carried out, or a list of its tools. Clients
 * send such items back with the conversation that they began there. */
static bool is_elsewhere(const struct json *item, const struct json *type) {
    return (json_ends_in(type, "_call") && !api_members_present(json_get(item, "call_id"))) ||
           json_is(type, "mcp_list_tools") || json_is(type, "mcp_approval_request") ||
           json_is(type, "mcp_approval_response");
}

static int add_item(struct api_messages *m, const struct json *item, uint32_t i, const struct json *thought,
                    struct error *e) {
    const struct json *type = json_get(item, "type");
    if (item->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "input[%u]: must be an object", i);
    if (!api_members_present(type) || json_is(type, "message")) return add_message(m, item, i, thought, e);
    if (json_ends_in(type, "_output")) return add_output(m, item, i, e);
    if (json_is(type, "function_call") || (json_ends_in(type, "_call") && !is_elsewhere(item, type)))
        return add_call(m, item, i, thought, e);
    if (is_elsewhere(item, type) || responses_tools_adds(item)) return 0;
    if (json_is(type, "item_reference"))
        return error_set(e, ERR_USAGE, "input[%u]: item_reference is not supported: %s", i, why_state);
    return error_set(e, ERR_USAGE,
                     "input[%u].type: %.*s is not supported: only message, reasoning, and calls with their outputs are",
                     i, type->type == JSON_STRING ? (int)(type->n < 60 ? type->n : 60) : 0, type->string);
}

static int read_input(struct api_request *r, const struct json *root, struct json *out, struct error *e) {
    const struct json *input = json_get(root, "input"), *system = json_get(root, "instructions");
    struct json thought = api_messages_word("");
    struct api_messages m;
    if (!input || (input->type != JSON_STRING && input->type != JSON_ARRAY) || !input->n)
        return error_set(e, ERR_USAGE, "input: a text or a non-empty array of items is required");
    TRY(api_messages_open(&m, r, input->type == JSON_ARRAY ? input->n + 1 : 2, e));
    if (api_members_present(system) && system->type != JSON_STRING)
        return error_set(e, ERR_USAGE, "instructions: must be a string");
    const struct json kept = system ? api_messages_without_headers(system) : (struct json){0};
    if (!api_members_empty(&kept)) TRY(api_messages_add(&m, "system", &kept, e));
    if (input->type == JSON_STRING) TRY(api_messages_add(&m, "user", input, e));
    for (uint32_t i = 0; input->type == JSON_ARRAY && i < input->n; i++) {
        const struct json *item = &input->items[i];
        const bool is_thought = json_is(json_get(item, "type"), "reasoning");
        TRY(is_thought ? read_reasoning(r, item, i, &thought, e) : add_item(&m, item, i, &thought, e));
        if (!is_thought) thought.n = 0;
    }
    if (!m.n) return error_set(e, ERR_USAGE, "input: has no message");
    *out = (struct json){.type = JSON_ARRAY, .n = m.n, .items = m.items};
    return 0;
}

static int parse(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                 struct error *e) {
    const struct api_member_table table = {.rows = members, .n = sizeof members / sizeof *members, .prefix = ""};
    struct api_template_options o = {.think = -1};
    struct json root, messages;
    TRY(api_parse_root(r, body, n, &root, e));
    TRY(api_members_read(r, &root, &table, strict, e));
    r->seals_thinking = responses_seal_wanted(r, json_get(&root, "include"));
    TRY(read_input(r, &root, &messages, e));
    TRY(responses_tools_read(r, &root, strict, e));
    TRY(api_format_read_typed(&r->arena, "text.format", json_path(&root, "text.format"), &r->source, &r->has_source,
                              e));
    const struct json *effort = json_path(&root, "reasoning.effort");
    if (effort && effort->type == JSON_STRING) o.effort = effort;
    return api_messages_finish(r, chat, &messages, &o, e);
}

const struct api_protocol openai_responses = {.id_prefix = "resp_",
                                              .stream_type = "text/event-stream",
                                              .has_comments = true,
                                              .fails_in_stream = true, /* Codex then shortens the chat */
                                              .still_here = ": still here\n\n",
                                              .parse = parse,
                                              .begin = responses_begin,
                                              .delta = responses_delta,
                                              .call = responses_call,
                                              .finish = responses_finish,
                                              .end = responses_end,
                                              .fail = responses_fail,
                                              .whole = responses_whole,
                                              .error = openai_error};
