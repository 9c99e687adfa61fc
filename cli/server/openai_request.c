/* Requests of OpenAI's chat completions and completions. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/server/api_format.h"
#include "cli/server/api_images.h"
#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"
#include "cli/server/openai.h"

/* --- members ---------------------------------------------------------------------------------- */

enum { CHAT = 1, TEXT = 2 }; /* forms */
static const char why_logits[] = "the vocabulary is restricted by response_format and guided_choice only",
                  why_grammar[] = "use response_format, guided_grammar or guided_json",
                  why_sampling[] = "sampling uses temperature, top_k, top_p and min_p",
                  why_end[] = "only the model, max_tokens and stop end an answer", why_text_only[] = "only text";
static const struct api_member members[] = {
    API_OTHER("messages", .forms = CHAT),
    API_OTHER("tools", .forms = CHAT),
    API_OTHER("tool_choice", .forms = CHAT),
    API_OTHER("reasoning_effort", .forms = CHAT),
    API_OTHER("reasoning", .forms = CHAT),
    API_OTHER("chat_template_kwargs", .forms = CHAT),
    API_OTHER("add_generation_prompt", .forms = CHAT),
    API_OTHER("continue_final_message", .forms = CHAT),
    API_OTHER("modalities", .forms = CHAT),
    API_OTHER("prompt", .forms = TEXT),
    API_OTHER("stream_options"),
    API_OTHER("response_format"),
    API_OTHER("guided_json"),
    API_OTHER("guided_regex"),
    API_OTHER("guided_grammar"),
    API_OTHER("guided_choice"),
    API_OTHER("structured_outputs"),
    API_VALUE("model", MEMBER_TEXT, model),
    API_VALUE("user", MEMBER_TEXT, user),
    API_VALUE("safety_identifier", MEMBER_TEXT, user),
    API_VALUE("stream", MEMBER_FLAG, stream),
    API_VALUE("explain", MEMBER_FLAG, explain),
    API_VALUE("markup", MEMBER_FLAG, markup),
    API_VALUE("kept", MEMBER_FLAG, report_disk_keys),
    API_VALUE("generated_whole", MEMBER_FLAG, generated_whole),
    API_OTHER("generated", .forms = CHAT),
    API_VALUE("store", MEMBER_NO_FLAG, no_disk_cache),
    API_VALUE("parallel_tool_calls", MEMBER_NO_FLAG, single_tool_call),
    API_SAMPLING,
    API_VALUE("repetition_penalty", MEMBER_NUMBER, repeat_penalty, 0.01, 100),
    API_VALUE("max_tokens", MEMBER_LIMIT, max_tokens),
    API_VALUE("max_completion_tokens", MEMBER_LIMIT, max_tokens),
    API_VALUE("n_predict", MEMBER_LIMIT, max_tokens),
    API_VALUE("n", MEMBER_INTEGER, n, 1, API_MAX_N),
    API_VALUE("best_of", MEMBER_INTEGER, best_of, 1, API_MAX_N),
    {.name = "stop", .kind = MEMBER_STOP},
    {.name = "logit_bias", .kind = MEMBER_BIAS},
    {.name = "logprobs", .kind = MEMBER_FLAG, .offset = offsetof(struct api_request, logprobs), .forms = CHAT},
    {.name = "top_logprobs",
     .kind = MEMBER_INTEGER,
     .offset = offsetof(struct api_request, n_top_logprobs),
     .lo = 0,
     .hi = MAX_TOP_LOGPROBS,
     .forms = CHAT},
    API_OTHER("logprobs", .forms = TEXT),
    API_NOTHING("metadata"),
    API_NOTHING("service_tier"),
    API_NOTHING("prompt_cache_key"),
    API_NOTHING("prompt_cache_retention"),
    API_NOTHING("prediction"),
    API_NOTHING("cache_prompt"),
    API_NOTHING("verbosity"),
    API_REFUSED("prompt_logprobs", 0, "probabilities are those of the answer"),
    API_REFUSED("bad_words", 0, why_logits),
    API_REFUSED("allowed_token_ids", 0, why_logits),
    API_REFUSED("grammar", 0, why_grammar),
    API_REFUSED("json_schema", 0, why_grammar),
    API_REFUSED("typical_p", 1, why_sampling),
    API_REFUSED("tfs_z", 1, why_sampling),
    API_REFUSED("top_a", 0, why_sampling),
    API_REFUSED("xtc_probability", 0, why_sampling),
    API_REFUSED("dynatemp_range", 0, why_sampling),
    API_REFUSED("mirostat", 0, why_sampling),
    API_REFUSED("use_beam_search", 0, why_sampling),
    API_REFUSED("min_tokens", 0, why_end),
    API_REFUSED("ignore_eos", 0, why_end),
    API_REFUSED("stop_token_ids", 0, why_end),
    API_REFUSED("include_stop_str_in_output", 0, "an answer ends before the string"),
    API_REFUSED("echo", 0, "an answer does not contain its prompt"),
    {.name = "suffix", .kind = MEMBER_TEXT, .offset = offsetof(struct api_request, suffix), .forms = TEXT},
    API_REFUSED("functions", 0, "use tools"),
    API_REFUSED("function_call", 0, "use tool_choice"),
    API_REFUSED("chat_template", NAN, "the model's own template is used"),
    API_OTHER("enable_thinking", .forms = CHAT),
    API_OTHER("thinking", .forms = CHAT),
    API_REFUSED("web_search_options", NAN, "there is no web search"),
    API_REFUSED("audio", 0, why_text_only),
};

static int read_stream_options(struct api_request *r, const struct json *root, bool strict, struct error *e) {
    static const struct api_member options[] = {API_VALUE("include_usage", MEMBER_FLAG, usage),
                                                API_NOTHING("include_obfuscation")};
    const struct json *j = json_get(root, "stream_options");
    if (!api_members_present(j)) return 0;
    if (j->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "stream_options: must be an object");
    return api_members_read(
        r, j, &(struct api_member_table){options, sizeof options / sizeof *options, "stream_options.", 0, NULL}, strict,
        e);
}

/* Reads what chats and text completions have in common. */
static int read_parameters(struct api_request *r, const struct json *root, int form, bool strict, struct error *e) {
    const struct api_member_table table = {members, sizeof members / sizeof *members, "", form,
                                           form == TEXT ? "/v1/chat/completions" : "/v1/completions"};
    TRY(api_members_read(r, root, &table, strict, e));
    TRY(read_stream_options(r, root, strict, e));
    TRY(api_format_read(&r->arena, root, &r->source, &r->has_source, e));
    if (r->best_of && r->best_of != r->n)
        return error_set(e, ERR_USAGE, "best_of is not supported: all n answers are returned");
    if (r->n_top_logprobs && !r->logprobs) return error_set(e, ERR_USAGE, "top_logprobs: needs \"logprobs\": true");
    if (r->partial_answer && r->n > 1)
        return error_set(e, ERR_USAGE, "n: cannot be combined with continue_final_message");
    r->markup &= r->stream;
    return 0;
}

/* --- chats ------------------------------------------------------------------------------------ */

/* Checks a role. A template silently drops messages of roles that it does not handle, so these are refused; "developer"
 * is the protocol's newer name for "system". */
static int check_role(const struct chat_template *chat, const struct json *role, uint32_t message,
                      const struct json **out, struct error *e) {
    static const char *const known[] = {"system", "user", "assistant", "tool"};
    static const struct json system = {.type = JSON_STRING, .n = 6, .string = "system"};
    *out = role;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (json_is(role, known[i])) return 0;
    if (!chat || chat_template_mentions(chat, role->string, role->n)) return 0;
    if (!json_is(role, "developer"))
        return error_set(e, ERR_USAGE, "messages[%u].role: this model's chat template has no role %.*s", message,
                         (int)(role->n < 60 ? role->n : 60), role->string);
    *out = &system;
    return 0;
}

/* An answer that was cut while the model was thinking has no content. */
static bool has_thought(const struct json *m) {
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    bool any = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) any |= !api_members_empty(json_get(m, names[i]));
    return any && json_is(json_get(m, "role"), "assistant");
}

/* Sets the value of a member of an object that has room for it. */
static void set_member(struct json *object, const char *key, const struct json *value) {
    struct json *all = (struct json *)object->items;
    if (json_get(object, key)) json_set(all, object->n, key, value);
    else all[2 * object->n] = api_messages_word(key), all[2 * object->n++ + 1] = *value;
}

/* Finds the content of a message. An answer that was stopped at once, or a tool that returned nothing, may have none,
 * and an answer may be a refusal instead. */
static int find_content(const struct json *m, const char *where, const struct json **out, struct error *e) {
    static const struct json nothing = {.type = JSON_STRING, .string = ""};
    const struct json *role = json_get(m, "role"), *refusal = json_get(m, "refusal");
    const bool may_lack = json_is(role, "assistant") || json_is(role, "tool");
    *out = json_get(m, "content");
    if (api_members_present(*out)) {
        if ((*out)->type == JSON_STRING || (*out)->type == JSON_ARRAY) return 0;
        return error_set(e, ERR_USAGE, "%s: must be text or an array of parts", where);
    }
    if (may_lack && refusal && refusal->type == JSON_STRING) return *out = refusal, 0;
    if (api_members_present(json_get(m, "tool_calls")) || has_thought(m)) return 0;
    if (!may_lack) return error_set(e, ERR_USAGE, "%s: missing", where);
    return *out = &nothing, 0;
}

/* Takes thinking out of the parts of an answer, as Mistral's clients send it: a text, or parts of text. */
static int take_thinking(struct api_request *r, const struct json *parts, const char *where, struct json *rest,
                         struct json *thought, struct error *e) {
    struct json *list, text;
    struct buf b = {0};
    int rc = api_messages_array(r, parts->n, rest, &list, e);
    rest->n = 0;
    for (uint32_t i = 0; i < parts->n && !rc; i++) {
        const struct json *part = &parts->items[i], *given = json_get(part, "thinking");
        const bool is_thinking = given && json_is(json_get(part, "type"), "thinking");
        if (!is_thinking) list[rest->n++] = *part;
        else if (given->type == JSON_STRING) buf_add(&b, given->string, given->n);
        else if (given->type != JSON_ARRAY)
            rc = error_set(e, ERR_USAGE, "%s[%u].thinking: must be text or an array of parts", where, i);
        else if (!(rc = api_messages_join(r, given, "text", "", where, &text, e))) buf_add(&b, text.string, text.n);
    }
    if (rc) return buf_free(&b), rc;
    return api_messages_take(r, &b, thought, e);
}

static int read_message(struct api_request *r, const struct json *m, uint32_t i, const struct chat_template *chat,
                        struct json *out, struct error *e) {
    static const char *const unsupported[] = {"function_call", "audio"}; /* no template uses these */
    static const char types[] = "text input_text output_text refusal";
    const struct json *role = json_get(m, "role"), *calls = json_get(m, "tool_calls"), *content;
    struct json joined, kept, thought = {0}, *copy;
    char where[40];
    snprintf(where, sizeof where, "messages[%u].content", i);
    if (m->type != JSON_OBJECT || !role || role->type != JSON_STRING)
        return error_set(e, ERR_USAGE, "messages[%u]: an object with a role is required", i);
    TRY(find_content(m, where, &content, e));
    if (api_members_present(calls) && calls->type != JSON_ARRAY)
        return error_set(e, ERR_USAGE, "messages[%u].tool_calls: must be an array", i);
    for (size_t k = 0; k < sizeof unsupported / sizeof *unsupported; k++)
        if (api_members_present(json_get(m, unsupported[k])))
            return error_set(e, ERR_USAGE, "messages[%u].%s is not supported", i, unsupported[k]);
    TRY(check_role(chat, role, i, &role, e));
    if (!(copy = json_members(&r->arena, m, 2))) return error_set(e, ERR_MEMORY, "no memory");
    *out = (struct json){.type = JSON_OBJECT, .n = m->n, .items = copy};
    json_set(copy, m->n, "role", role);
    if (content && json_is(role, "system")) kept = api_messages_without_headers(content), content = &kept;
    if (content && content->type == JSON_ARRAY && json_is(role, "assistant")) {
        TRY(take_thinking(r, content, where, &kept, &thought, e));
        content = &kept;
    }
    if (content && content->type == JSON_ARRAY) {
        TRY(json_is(role, "user") || json_is(role, "tool")
                ? api_images_join(r, content, types, where, &joined, e)
                : api_messages_join(r, content, types, "", where, &joined, e));
        content = &joined;
    }
    if (content) set_member(out, "content", content);
    if (thought.n && !has_thought(m)) set_member(out, "reasoning_content", &thought);
    return 0;
}

static int read_messages(struct api_request *r, const struct json *from, const struct chat_template *chat,
                         struct json *out, struct error *e) {
    struct json *list;
    if (!from || from->type != JSON_ARRAY || !from->n)
        return error_set(e, ERR_USAGE, "messages: a non-empty array is required");
    TRY(api_messages_array(r, from->n, out, &list, e));
    for (uint32_t i = 0; i < from->n; i++) TRY(read_message(r, &from->items[i], i, chat, &list[i], e));
    return 0;
}

static int read_tools(struct api_request *r, const struct json *root, bool strict, struct error *e) {
    const struct json *from = json_get(root, "tools");
    struct json *tools, *list;
    TRY(api_messages_open_tools(r, from, &tools, &list, e));
    for (uint32_t i = 0; tools && i < from->n; i++) {
        const struct json *type = json_get(&from->items[i], "type");
        if (from->items[i].type != JSON_OBJECT) return error_set(e, ERR_USAGE, "tools[%u]: must be an object", i);
        if (!api_members_present(type) || json_is(type, "function")) {
            TRY(api_messages_check_tool(&from->items[i], i, e));
            list[tools->n++] = from->items[i];
        } else TRY(api_messages_skip_tool(r, i, type, "function", strict, e));
    }
    r->tools = tools;
    return api_messages_read_choice(r, json_get(root, "tool_choice"), e);
}

/* Removes the partial answer from the messages. Its reasoning cannot be restored as tokens, so it is refused. */
static int take_partial_answer(struct api_request *r, const struct json *root, struct json *messages, struct error *e) {
    const struct json *last = &messages->items[messages->n - 1], *text = json_get(last, "content"),
                      *thought = json_get(last, "reasoning_content");
    bool wanted = false;
    TRY(api_members_flag(root, "continue_final_message", &wanted, e));
    if (!wanted) return 0;
    if (!json_is(json_get(last, "role"), "assistant") || messages->n < 2 || !text || text->type != JSON_STRING ||
        api_members_present(json_get(last, "tool_calls")))
        return error_set(e, ERR_USAGE,
                         "continue_final_message: the last message must be an assistant's text after another message");
    if (api_members_present(thought) && thought->n)
        return error_set(e, ERR_USAGE, "continue_final_message is not supported for an answer with reasoning_content");
    r->partial_answer = text;
    messages->n--;
    return 0;
}

/* Whether to think, as the servers of Qwen (enable_thinking), of DeepSeek, GLM and Kimi (thinking), and OpenRouter
 * (reasoning) take it. */
static int read_thinking(const struct json *root, int *think, struct error *e) {
    const struct json *thinking = json_get(root, "thinking"), *on = json_path(root, "reasoning.enabled");
    bool enabled = false;
    if (on && on->type == JSON_BOOL) *think = on->boolean;
    TRY(api_members_flag(root, "enable_thinking", &enabled, e));
    if (api_members_present(json_get(root, "enable_thinking"))) *think = enabled;
    return api_messages_read_thinking(thinking, think, e);
}

static int read_template_options(const struct json *root, struct api_template_options *o, struct error *e) {
    const struct json *kwargs = json_get(root, "chat_template_kwargs"), *modalities = json_get(root, "modalities");
    bool prompt = true;
    *o = (struct api_template_options){.effort = json_get(root, "reasoning_effort"), .think = -1};
    if (!api_members_present(o->effort)) o->effort = json_path(root, "reasoning.effort");
    if (api_members_present(kwargs)) o->kwargs = kwargs;
    if (o->kwargs && kwargs->type != JSON_OBJECT)
        return error_set(e, ERR_USAGE, "chat_template_kwargs: must be an object");
    if (api_members_present(o->effort) && o->effort->type != JSON_STRING)
        return error_set(e, ERR_USAGE, "reasoning_effort: must be a string");
    TRY(read_thinking(root, &o->think, e));
    for (uint32_t i = 0; api_members_present(modalities) && modalities->type == JSON_ARRAY && i < modalities->n; i++)
        if (!json_is(&modalities->items[i], "text")) return error_set(e, ERR_USAGE, "modalities: %s", why_text_only);
    TRY(api_members_flag(root, "add_generation_prompt", &prompt, e));
    o->no_generation_prompt = !prompt;
    return 0;
}

static int parse_chat(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                      struct error *e) {
    struct json root, messages;
    struct api_template_options options;
    TRY(api_parse_root(r, body, n, &root, e));
    TRY(read_messages(r, json_get(&root, "messages"), chat, &messages, e));
    TRY(take_partial_answer(r, &root, &messages, e));
    TRY(read_tools(r, &root, strict, e));
    TRY(read_parameters(r, &root, CHAT, strict, e));
    if (r->markup && api_members_present(r->generated = json_get(&root, "generated")) &&
        r->generated->type != JSON_ARRAY)
        return error_set(e, ERR_USAGE, "generated: must be a list of ids");
    TRY(read_template_options(&root, &options, e));
    return api_messages_finish(r, chat, &messages, &options, e);
}

/* --- text completions ------------------------------------------------------------------------- */

/* logprobs of a text completion is the number of alternatives; true means 0, false means no logprobs. */
static int read_text_logprobs(struct api_request *r, const struct json *j, struct error *e) {
    const int64_t n_top = json_int(j, j && j->type == JSON_BOOL ? (j->boolean ? 0 : -1) : -2);
    if (!api_members_present(j) || n_top == -1) return 0;
    if (n_top < 0 || n_top > MAX_TOP_LOGPROBS)
        return error_set(e, ERR_USAGE, "logprobs: must be an integer from 0 to %d", MAX_TOP_LOGPROBS);
    r->logprobs = true, r->n_top_logprobs = (int)n_top;
    return 0;
}

/* Reads one prompt, or a list of them. */
static int read_prompts(struct api_request *r, const struct json *root, struct error *e) {
    const struct json *prompt = json_get(root, "prompt");
    const bool is_list = prompt && prompt->type == JSON_ARRAY && prompt->n && prompt->items[0].type != JSON_INT;
    struct json *all;
    if (!api_members_present(prompt)) return error_set(e, ERR_USAGE, "prompt: missing");
    r->n_prompts = is_list ? prompt->n : 1;
    if (r->n_prompts > (uint32_t)(API_MAX_CHOICES / r->n))
        return error_set(e, ERR_USAGE, "prompt: at most %d answers in one request", API_MAX_CHOICES);
    if (!(all = arena_alloc(&r->arena, r->n_prompts * sizeof *all))) return error_set(e, ERR_MEMORY, "no memory");
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        all[i] = is_list ? prompt->items[i] : *prompt;
        if (r->suffix && (all[i].type != JSON_STRING || r->n_prompts > 1))
            return error_set(e, ERR_USAGE, "suffix: needs one prompt that is a text");
        if ((all[i].type != JSON_STRING && all[i].type != JSON_ARRAY) || (!all[i].n && !r->suffix))
            return error_set(e, ERR_USAGE, "prompt: must be texts or lists of ids, none of them empty");
    }
    r->raw_prompt = all;
    return 0;
}

static int parse_text(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, bool strict,
                      struct error *e) {
    enum { DEFAULT_TOKENS = 16 }; /* as the protocol says */
    struct json root;
    TRY(api_parse_root(r, body, n, &root, e));
    r->max_tokens = DEFAULT_TOKENS;
    TRY(read_parameters(r, &root, TEXT, strict, e));
    TRY(read_text_logprobs(r, json_get(&root, "logprobs"), e));
    if (r->suffix && !r->suffix->n) r->suffix = NULL;
    return read_prompts(r, &root, e);
}

const struct api_protocol openai_chat = {.id_prefix = "chatcmpl-",
                                         .stream_type = "text/event-stream",
                                         .has_comments = true,
                                         .still_here = ": still here\n\n",
                                         .parse = parse_chat,
                                         .begin = openai_begin,
                                         .delta = openai_chat_delta,
                                         .call = openai_chat_call,
                                         .finish = openai_chat_finish,
                                         .end = openai_chat_end,
                                         .fail = openai_fail,
                                         .whole = openai_chat_whole,
                                         .error = openai_error};
const struct api_protocol openai_text = {.id_prefix = "cmpl-",
                                         .stream_type = "text/event-stream",
                                         .has_comments = true,
                                         .still_here = ": still here\n\n",
                                         .parse = parse_text,
                                         .begin = openai_text_begin,
                                         .delta = openai_text_delta,
                                         .finish = openai_text_finish,
                                         .end = openai_text_end,
                                         .fail = openai_fail,
                                         .whole = openai_text_whole,
                                         .error = openai_error};
