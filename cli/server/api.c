#include "cli/server/api.h"

#include <math.h>
#include <string.h>

#include "cli/server/api_format.h"
#include "cli/terminal/out.h"

/* --- requests -------------------------------------------------------------------------------------------------------- */

static struct json json_word(const char *s) { return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s}; }
static bool is_present(const struct json *j) { return j && j->type != JSON_NULL; }

/* Joins content parts into one text, the only form that templates and the model accept. */
static int join_content_parts(struct arena *arena, const struct json *parts, uint32_t message, struct json *out, struct error *e) {
    size_t n = 0;
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct json *text = json_get(&parts->items[i], "text"), *type = json_get(&parts->items[i], "type");
        if (type && type->type == JSON_STRING && !json_is(type, "text"))
            return error_set(e, ERR_USAGE, "messages[%u].content[%u]: %.*s is not supported: only parts of type text are", message, i,
                             (int)(type->n < 60 ? type->n : 60), type->string);
        if (!type || !text || text->type != JSON_STRING)
            return error_set(e, ERR_USAGE, "messages[%u].content[%u]: a part of type text is required", message, i);
        n += text->n;
    }
    char *s = arena_alloc(arena, n + 1);
    if (!s || n > UINT32_MAX) return error_set(e, ERR_MEMORY, "no memory");
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = s};
    for (uint32_t i = 0; i < parts->n; i++) {
        const struct json *text = json_get(&parts->items[i], "text");
        memcpy(s, text->string, text->n);
        s += text->n;
    }
    return 0;
}

/* Parses the arguments of earlier tool calls: the protocol has them as text, templates expect the object. */
static int parse_call_arguments(struct arena *arena, const struct json *calls, struct json *out, struct error *e) {
    struct json *list = arena_alloc(arena, (size_t)calls->n * sizeof *list + 1);
    if (!list) return error_set(e, ERR_MEMORY, "no memory");
    *out = (struct json){.type = JSON_ARRAY, .n = calls->n, .items = list};
    for (uint32_t i = 0; i < calls->n; i++) {
        const struct json *f = json_get(&calls->items[i], "function"), *text = json_get(f, "arguments");
        struct json arguments, function, *m, *call;
        list[i] = calls->items[i];
        if (!text || text->type != JSON_STRING || json_parse(arena, text->string, text->n, 0, "arguments", &arguments, NULL)) continue;
        if (arguments.type != JSON_OBJECT) continue;
        if (!(m = json_members(arena, f, 0)) || !(call = json_members(arena, &calls->items[i], 0))) return error_set(e, ERR_MEMORY, "no memory");
        json_set(m, f->n, "arguments", &arguments);
        function = *f;
        function.items = m;
        json_set(call, list[i].n, "function", &function);
        list[i].items = call;
    }
    return 0;
}

/* Checks a role. A template silently drops messages of roles that it does not handle, so these are refused; "developer" is the
 * protocol's newer name for "system". */
static int check_role(const struct chat_template *chat, const struct json *role, uint32_t message, const struct json **out, struct error *e) {
    static const char *const usual[] = {"system", "user", "assistant", "tool"};
    static const struct json system = {.type = JSON_STRING, .n = 6, .string = "system"};
    *out = role;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (json_is(role, usual[i])) return 0;
    if (!chat || chat_template_mentions(chat, role->string, role->n)) return 0;
    if (!json_is(role, "developer"))
        return error_set(e, ERR_USAGE, "messages[%u].role: this model's chat template has no role %.*s", message, (int)(role->n < 60 ? role->n : 60),
                         role->string);
    *out = &system;
    return 0;
}

static int read_messages(struct api_request *r, const struct json *from, const struct chat_template *chat, struct json *out, struct error *e) {
    if (!from || from->type != JSON_ARRAY || !from->n) return error_set(e, ERR_USAGE, "messages: a non-empty array is required");
    struct json *list = arena_alloc(&r->arena, (size_t)from->n * sizeof *list);
    if (!list) return error_set(e, ERR_MEMORY, "no memory");
    *out = (struct json){.type = JSON_ARRAY, .n = from->n, .items = list};
    for (uint32_t i = 0; i < from->n; i++) {
        const struct json *m = &from->items[i], *role = json_get(m, "role"), *content = json_get(m, "content"), *calls = json_get(m, "tool_calls");
        struct json text, opened, *copy;
        int rc = 0;
        if (m->type != JSON_OBJECT || !role || role->type != JSON_STRING) return error_set(e, ERR_USAGE, "messages[%u]: an object with a role is required", i);
        if (content && content->type != JSON_STRING && content->type != JSON_ARRAY && content->type != JSON_NULL)
            return error_set(e, ERR_USAGE, "messages[%u].content: must be text or an array of parts", i);
        if (!is_present(content) && !is_present(calls)) return error_set(e, ERR_USAGE, "messages[%u].content: missing", i);
        if (is_present(calls) && calls->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "messages[%u].tool_calls: must be an array", i);
        static const char *const left_out[] = {"function_call", "audio", "refusal"}; /* no template uses these */
        for (size_t k = 0; k < sizeof left_out / sizeof *left_out; k++)
            if (is_present(json_get(m, left_out[k]))) return error_set(e, ERR_USAGE, "messages[%u].%s is not supported", i, left_out[k]);
        if ((rc = check_role(chat, role, i, &role, e))) return rc;
        if (!(copy = json_members(&r->arena, m, 0))) return error_set(e, ERR_MEMORY, "no memory");
        json_set(copy, m->n, "role", role);
        if (content && content->type == JSON_ARRAY) {
            if (!(rc = join_content_parts(&r->arena, content, i, &text, e))) json_set(copy, m->n, "content", &text);
        }
        if (!rc && is_present(calls) && !(rc = parse_call_arguments(&r->arena, calls, &opened, e))) json_set(copy, m->n, "tool_calls", &opened);
        if (rc) return rc;
        list[i] = *m;
        list[i].items = copy;
    }
    return 0;
}

static int read_number(const struct json *root, const char *name, double lo, double hi, float *out, struct error *e) {
    const struct json *j = json_get(root, name);
    double v = json_num(j, NAN);
    if (!is_present(j)) return 0;
    if (!(v >= lo && v <= hi)) return error_set(e, ERR_USAGE, "%s: must be a number from %g to %g", name, lo, hi);
    *out = (float)v;
    return 0;
}
static int read_integer(const struct json *root, const char *name, int64_t lo, int64_t hi, int64_t *out, struct error *e) {
    const struct json *j = json_get(root, name);
    int64_t v = json_int(j, lo - 1);
    if (!is_present(j)) return 0;
    if (v < lo || v > hi) return error_set(e, ERR_USAGE, "%s: must be an integer from %lld to %lld", name, (long long)lo, (long long)hi);
    *out = v;
    return 0;
}

static int read_flag(const struct json *root, const char *name, bool *out, struct error *e) {
    const struct json *j = json_get(root, name);
    if (is_present(j) && j->type != JSON_BOOL) return error_set(e, ERR_USAGE, "%s: must be true or false", name);
    if (is_present(j)) *out = j->boolean;
    return 0;
}

static int read_stop(struct api_request *r, const struct json *j, struct error *e) {
    if (!is_present(j)) return 0;
    uint32_t n = j->type == JSON_ARRAY ? j->n : 1;
    if (n > 16) return error_set(e, ERR_USAGE, "stop: at most 16 strings");
    if (!(r->stop = arena_alloc(&r->arena, (size_t)n * sizeof *r->stop + 1))) return error_set(e, ERR_MEMORY, "no memory");
    for (uint32_t i = 0; i < n; i++) {
        const struct json *s = j->type == JSON_ARRAY ? &j->items[i] : j;
        if (s->type != JSON_STRING || !s->n || memchr(s->string, 0, s->n)) return error_set(e, ERR_USAGE, "stop: must be non-empty strings");
        if (!(r->stop[r->n_stop++] = arena_strndup(&r->arena, s->string, s->n))) return error_set(e, ERR_MEMORY, "no memory");
    }
    return 0;
}

static bool is_one_of(const struct json *name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (json_is(name, names[i])) return true;
    return false;
}
static bool is_empty_value(const struct json *j) { return !is_present(j) || (j->type == JSON_BOOL && !j->boolean) || (j->type >= JSON_STRING && !j->n); }

/* Unsupported members that would change an answer are refused; members without effect on it are ignored. */
static const char why_one_answer[] = "one answer per request", why_probabilities[] = "probabilities are not returned",
                  why_logits[] = "logits cannot be changed", why_grammar[] = "use response_format, guided_grammar or guided_json",
                  why_sampling[] = "sampling uses temperature, top_k, top_p and min_p", why_end[] = "only the model, max_tokens and stop end an answer",
                  why_template_variable[] = "set it in chat_template_kwargs", why_text_only[] = "only text";
static const struct {
    const char *name, *why;
    double harmless; /* accepted number; NAN: no value is accepted, not even false */
} unsupported[] = {{"n", why_one_answer, 1},
                   {"best_of", why_one_answer, 1},
                   {"logprobs", why_probabilities, 0},
                   {"top_logprobs", why_probabilities, 0},
                   {"prompt_logprobs", why_probabilities, 0},
                   {"logit_bias", why_logits, 0},
                   {"bad_words", why_logits, 0},
                   {"grammar", why_grammar, 0},
                   {"json_schema", why_grammar, 0},
                   {"typical_p", why_sampling, 1},
                   {"mirostat", why_sampling, 0},
                   {"use_beam_search", why_sampling, 0},
                   {"min_tokens", why_end, 0},
                   {"ignore_eos", why_end, 0},
                   {"stop_token_ids", why_end, 0},
                   {"functions", "use tools", 0},
                   {"chat_template", "the model's own template is used", NAN},
                   {"enable_thinking", why_template_variable, NAN},
                   {"thinking", why_template_variable, NAN},
                   {"web_search_options", "there is no web search", NAN},
                   {"audio", why_text_only, 0}};

/* Refuses all other members with a value, since they may be meant to change an answer. */
static int refuse_unknown_members(const struct json *root, struct error *e) {
    static const char *const served[] = {"messages",
                                         "model",
                                         "tools",
                                         "tool_choice",
                                         "parallel_tool_calls",
                                         "stream",
                                         "stream_options",
                                         "temperature",
                                         "top_p",
                                         "min_p",
                                         "top_k",
                                         "repetition_penalty",
                                         "presence_penalty",
                                         "frequency_penalty",
                                         "seed",
                                         "max_tokens",
                                         "max_completion_tokens",
                                         "stop",
                                         "response_format",
                                         "prompt",
                                         "guided_json",
                                         "guided_regex",
                                         "guided_grammar",
                                         "guided_choice",
                                         "structured_outputs",
                                         "modalities",
                                         "reasoning_effort",
                                         "chat_template_kwargs",
                                         "add_generation_prompt",
                                         "continue_final_message",
                                         "user",
                                         "safety_identifier",
                                         "store",
                                         "explain",
                                         "markup",
                                         "kept"};
    static const char *const left_aside[] = {"metadata", "service_tier", "prompt_cache_key", "prompt_cache_retention", "prediction", "cache_prompt"};
    for (uint32_t i = 0; i < root->n; i++) {
        const struct json *name = &root->items[2 * i], *value = name + 1;
        if (is_one_of(name, served, sizeof served / sizeof *served) || is_one_of(name, left_aside, sizeof left_aside / sizeof *left_aside)) continue;
        bool named = is_empty_value(value) || json_num(value, NAN) == 0; /* explicitly disabled */
        for (size_t k = 0; k < sizeof unsupported / sizeof *unsupported && !named; k++) named = json_is(name, unsupported[k].name);
        if (named) continue;
        return error_set(e, ERR_USAGE, "%.*s is not supported: unknown member", (int)(name->n < 60 ? name->n : 60), name->string);
    }
    return 0;
}
static int read_stream_options(struct api_request *r, const struct json *root, struct error *e) {
    static const char *const served[] = {"include_usage", "include_obfuscation"}; /* the latter only pads chunks */
    const struct json *options = json_get(root, "stream_options");
    if (!is_present(options)) return 0;
    if (options->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "stream_options: must be an object");
    for (uint32_t i = 0; i < options->n; i++) {
        const struct json *name = &options->items[2 * i];
        if (!is_one_of(name, served, 2) && !is_empty_value(name + 1))
            return error_set(e, ERR_USAGE, "stream_options.%.*s is not supported", (int)(name->n < 60 ? name->n : 60), name->string);
    }
    return read_flag(options, "include_usage", &r->usage, e);
}
static int check_tools(const struct json *tools, struct error *e) {
    if (is_present(tools) && tools->type != JSON_ARRAY) return error_set(e, ERR_USAGE, "tools: must be an array");
    for (uint32_t i = 0; is_present(tools) && i < tools->n; i++) {
        const struct json *type = json_get(&tools->items[i], "type"), *strict = json_get(json_get(&tools->items[i], "function"), "strict");
        if (tools->items[i].type != JSON_OBJECT) return error_set(e, ERR_USAGE, "tools[%u]: must be an object", i);
        if (is_present(type) && !json_is(type, "function")) return error_set(e, ERR_USAGE, "tools[%u].type: only function is supported", i);
        if (!is_empty_value(strict)) return error_set(e, ERR_USAGE, "tools[%u].function.strict is not supported: arguments are not constrained", i);
    }
    return 0;
}

static int refuse_unsupported_members(const struct json *root, const struct chat_template *chat, struct error *e) {
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++) {
        const struct json *j = json_get(root, unsupported[i].name);
        if (!is_present(j) || (!isnan(unsupported[i].harmless) && (is_empty_value(j) || json_num(j, NAN) == unsupported[i].harmless))) continue;
        return error_set(e, ERR_USAGE, "%s is not supported: %s", unsupported[i].name, unsupported[i].why);
    }
    if (chat && is_present(json_get(root, "reasoning_effort")) && !chat_template_mentions(chat, "reasoning_effort", strlen("reasoning_effort")))
        return error_set(e, ERR_USAGE, "reasoning_effort is not supported: this model's chat template does not use it");
    const struct json *choice = json_get(root, "tool_choice"), *modalities = json_get(root, "modalities");
    for (uint32_t i = 0; is_present(modalities) && modalities->type == JSON_ARRAY && i < modalities->n; i++)
        if (!json_is(&modalities->items[i], "text")) return error_set(e, ERR_USAGE, "modalities: %s", why_text_only);
    if (is_present(choice) && !json_is(choice, "auto") && !json_is(choice, "none"))
        return error_set(e, ERR_USAGE, "tool_choice: only auto and none are supported");
    return check_tools(json_get(root, "tools"), e);
}

/* Builds the template's input. Template variables come first, so that none of them can shadow a later member. */
static int make_template_input(struct api_request *r, const struct json *root, const struct json *messages, struct error *e) {
    const struct json *kwargs = json_get(root, "chat_template_kwargs"), *effort = json_get(root, "reasoning_effort"), is_empty_value = {.type = JSON_OBJECT};
    if (!is_present(kwargs)) kwargs = &is_empty_value;
    if (kwargs->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "chat_template_kwargs: must be an object");
    struct json *m = json_members(&r->arena, kwargs, 4), *at;
    if (!m) return error_set(e, ERR_MEMORY, "no memory");
    at = m + 2 * (size_t)kwargs->n;
    if (is_present(effort)) *at++ = json_word("reasoning_effort"), *at++ = *effort;
    if (r->tools) *at++ = json_word("tools"), *at++ = *r->tools;
    bool prompt = true;
    int rc = read_flag(root, "add_generation_prompt", &prompt, e);
    if (rc) return rc;
    if (!json_get(kwargs, "add_generation_prompt"))
        *at++ = json_word("add_generation_prompt"), *at++ = (struct json){.type = JSON_BOOL, .boolean = prompt || r->partial_answer};
    *at++ = json_word("messages"), *at++ = *messages;
    r->template_input = (struct json){.type = JSON_OBJECT, .n = (uint32_t)(at - m) / 2, .items = m};
    return 0;
}

/* Removes the partial answer from the messages. Its reasoning cannot be restored as tokens, so it is refused. */
static int take_partial_answer(struct api_request *r, const struct json *root, struct json *messages, struct error *e) {
    const struct json *last = &messages->items[messages->n - 1], *text = json_get(last, "content"), *thought = json_get(last, "reasoning_content");
    bool wanted = false;
    int rc = read_flag(root, "continue_final_message", &wanted, e);
    if (rc || !wanted) return rc;
    if (!json_is(json_get(last, "role"), "assistant") || messages->n < 2 || !text || text->type != JSON_STRING || is_present(json_get(last, "tool_calls")))
        return error_set(e, ERR_USAGE, "continue_final_message: the last message must be an assistant's text after another message");
    if (is_present(thought) && thought->n) return error_set(e, ERR_USAGE, "continue_final_message is not supported for an answer with reasoning_content");
    r->partial_answer = text;
    messages->n--;
    return 0;
}

static int parse_root(struct api_request *r, const char *body, size_t n, struct json *root, struct error *e) {
    *r = (struct api_request){
        .temperature = NAN, .top_p = NAN, .min_p = NAN, .repeat_penalty = NAN, .presence_penalty = NAN, .frequency_penalty = NAN, .seed = -1};
    int rc = json_parse(&r->arena, body, n, 0, "request", root, e);
    if (rc == ERR_MODEL) rc = e->code = ERR_USAGE;
    return !rc && root->type != JSON_OBJECT ? error_set(e, ERR_USAGE, "request: must be an object") : rc;
}

/* Reads what chats and text completions have in common: model, user, form of the reply, sampling, limits. */
static int read_parameters(struct api_request *r, const struct json *root, struct error *e) {
    static const char *const names[] = {"safety_identifier", "user"}; /* the newer name first */
    const struct json *model = json_get(root, "model");
    int64_t max = -1, top_k = -1;
    bool parallel = true, store = true;
    if (is_present(model) && model->type != JSON_STRING) return error_set(e, ERR_USAGE, "model: must be a string");
    if (is_present(model)) r->model = model;
    for (size_t i = 0; i < sizeof names / sizeof *names && !r->user; i++) {
        const struct json *user = json_get(root, names[i]);
        if (is_present(user) && user->type != JSON_STRING) return error_set(e, ERR_USAGE, "%s: must be a string", names[i]);
        if (is_present(user)) r->user = user;
    }
    TRY(read_flag(root, "parallel_tool_calls", &parallel, e));
    TRY(read_flag(root, "stream", &r->stream, e));
    TRY(read_stream_options(r, root, e));
    TRY(read_flag(root, "explain", &r->explain, e));
    TRY(read_flag(root, "markup", &r->markup, e));
    TRY(read_flag(root, "kept", &r->report_disk_keys, e));
    TRY(read_flag(root, "store", &store, e));
    r->single_tool_call = !parallel, r->no_disk_cache = !store, r->markup &= r->stream;
    TRY(read_number(root, "temperature", 0, 100, &r->temperature, e));
    TRY(read_number(root, "top_p", 0, 1, &r->top_p, e));
    TRY(read_number(root, "min_p", 0, 1, &r->min_p, e));
    TRY(read_number(root, "repetition_penalty", 0.01, 100, &r->repeat_penalty, e));
    TRY(read_number(root, "presence_penalty", -2, 2, &r->presence_penalty, e));
    TRY(read_number(root, "frequency_penalty", -2, 2, &r->frequency_penalty, e));
    TRY(read_integer(root, "top_k", -1, 1 << 24, &top_k, e));
    TRY(read_integer(root, "max_tokens", -1, 1 << 24, &max, e));
    TRY(read_integer(root, "max_completion_tokens", -1, 1 << 24, &max, e));
    TRY(read_integer(root, "seed", -1, INT64_MAX, &r->seed, e));
    TRY(read_stop(r, json_get(root, "stop"), e));
    TRY(api_format_read(&r->arena, root, &r->source, &r->has_source, e));
    if (!max) return error_set(e, ERR_USAGE, "max_tokens: must be at least 1, or -1 for no limit");
    r->top_k = (int)top_k;
    r->max_tokens = (int)max;
    return refuse_unknown_members(root, e);
}

int api_parse(struct api_request *r, const char *body, size_t n, const struct chat_template *chat, struct error *e) {
    struct json root, messages;
    TRY(parse_root(r, body, n, &root, e));
    TRY(refuse_unsupported_members(&root, chat, e));
    TRY(read_messages(r, json_get(&root, "messages"), chat, &messages, e));
    TRY(take_partial_answer(r, &root, &messages, e));
    const struct json *tools = json_get(&root, "tools");
    if (is_present(tools) && tools->n && !json_is(json_get(&root, "tool_choice"), "none")) r->tools = tools;
    TRY(read_parameters(r, &root, e));
    return make_template_input(r, &root, &messages, e);
}

int api_parse_completion(struct api_request *r, const char *body, size_t n, struct error *e) {
    enum { DEFAULT_TOKENS = 16 }; /* as the protocol says */
    static const char *const chats_only[] = {"messages", "tools", "chat_template_kwargs", "continue_final_message", "reasoning_effort"};
    struct json root;
    TRY(parse_root(r, body, n, &root, e));
    for (size_t i = 0; i < sizeof chats_only / sizeof *chats_only; i++)
        if (is_present(json_get(&root, chats_only[i]))) return error_set(e, ERR_USAGE, "%s: belongs to /v1/chat/completions", chats_only[i]);
    TRY(refuse_unsupported_members(&root, NULL, e));
    const struct json *prompt = json_get(&root, "prompt");
    if (prompt && prompt->type == JSON_ARRAY && prompt->n == 1 && prompt->items[0].type == JSON_STRING) prompt = &prompt->items[0];
    if (!prompt || (prompt->type != JSON_STRING && prompt->type != JSON_ARRAY) || !prompt->n ||
        (prompt->type == JSON_ARRAY && prompt->items[0].type != JSON_INT))
        return error_set(e, ERR_USAGE, "prompt: a text or a list of ids is required; one prompt per request");
    r->raw_prompt = arena_alloc(&r->arena, sizeof *prompt);
    if (!r->raw_prompt) return error_set(e, ERR_MEMORY, "no memory");
    *(struct json *)r->raw_prompt = *prompt;
    TRY(read_parameters(r, &root, e));
    if (!is_present(json_get(&root, "max_tokens"))) r->max_tokens = DEFAULT_TOKENS;
    return 0;
}

void api_free(struct api_request *r) {
    arena_free(&r->arena);
    *r = (struct api_request){0};
}

void api_override_sampling(const struct api_request *r, struct sampling *s) {
    if (!isnan(r->temperature)) s->temperature = r->temperature;
    if (!isnan(r->top_p)) s->top_p = r->top_p;
    if (!isnan(r->min_p)) s->min_p = r->min_p;
    if (!isnan(r->repeat_penalty)) s->repeat_penalty = r->repeat_penalty;
    if (!isnan(r->presence_penalty)) s->presence_penalty = r->presence_penalty;
    if (!isnan(r->frequency_penalty)) s->frequency_penalty = r->frequency_penalty;
    if (r->top_k >= 0) s->top_k = r->top_k;
    if (r->seed >= 0) s->seed = (uint64_t)r->seed;
}

/* --- replies --------------------------------------------------------------------------------------------------------- */

static void put_head(struct buf *b, const struct api_answer *a, const char *object) {
    buf_fmt(b, "{\"id\": \"%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ", a->id, object, a->created);
    out_json_string(b, a->model, strlen(a->model));
}
static void put_reason(struct buf *b, const char *reason) {
    if (reason) buf_fmt(b, "\"finish_reason\": \"%s\"", reason);
    else buf_str(b, "\"finish_reason\": null");
}

void api_put_chunk(struct buf *b, const struct api_answer *a, const char *delta, size_t n, const char *reason) {
    buf_str(b, "data: ");
    put_head(b, a, "chat.completion.chunk");
    buf_str(b, ", \"choices\": [{\"index\": 0, \"delta\": {");
    buf_add(b, delta ? delta : "", n);
    buf_str(b, "}, ");
    put_reason(b, reason);
    buf_str(b, "}]}\n\n");
}

static void put_text_choice(struct buf *b, const struct api_answer *a, const char *s, size_t n, const char *reason) {
    put_head(b, a, "text_completion");
    buf_str(b, ", \"choices\": [{\"index\": 0, \"text\": ");
    out_json_string(b, s, n);
    buf_str(b, ", \"logprobs\": null, ");
    put_reason(b, reason);
    buf_str(b, "}]");
}
void api_put_text_chunk(struct buf *b, const struct api_answer *a, const char *s, size_t n, const char *reason) {
    buf_str(b, "data: ");
    put_text_choice(b, a, s, n, reason);
    buf_str(b, "}\n\n");
}

void api_put_text(struct buf *b, enum output_kind part, const char *s, size_t n) {
    buf_str(b, part == OUTPUT_THINKING ? "\"reasoning_content\": " : part == OUTPUT_TOOL_CALL ? "\"tool\": " : "\"content\": ");
    out_json_string(b, s, n);
}

void api_put_calls(struct buf *b, const struct tool_calls *c, const char *id, bool index) {
    buf_str(b, "\"tool_calls\": [");
    for (size_t i = 0; i < c->n; i++) {
        buf_str(b, i ? ", {" : "{");
        if (index) buf_fmt(b, "\"index\": %zu, ", i);
        buf_fmt(b, "\"id\": \"call_%s_%zu\", \"type\": \"function\", \"function\": {\"name\": ", id + strcspn(id, "-") + 1, i);
        out_json_string(b, c->v[i].name.data, c->v[i].name.len);
        buf_str(b, ", \"arguments\": ");
        out_json_string(b, c->v[i].arguments.data, c->v[i].arguments.len);
        buf_str(b, "}}");
    }
    buf_char(b, ']');
}

int api_parse_tools(const struct api_request *r, const struct turn *t, struct tool_calls *out) {
    if (t->tool.len && !r->markup && tool_calls_parse(t->tool.data, t->tool.len, r->tools, out) == ERR_MEMORY) return ERR_MEMORY;
    if (r->single_tool_call && out->n) tool_calls_truncate(out, 1);
    return 0;
}

const char *api_finish_reason(const struct turn *t, const struct tool_calls *calls) {
    if (t->reason == DONE_LENGTH || t->reason == DONE_CONTEXT) return "length";
    return calls->n ? "tool_calls" : "stop";
}

static void put_usage(struct buf *b, const struct turn *t, bool explain) {
    const struct turn_stats *s = &t->stats;
    buf_fmt(b,
            "\"usage\": {\"prompt_tokens\": %d, \"completion_tokens\": %d, \"total_tokens\": %d, \"prompt_tokens_details\": {\"cached_tokens\": %d}}, "
            "\"timings\": {\"reason\": \"%s\", \"timing\": ",
            s->prompt_tokens, s->answer_tokens, s->prompt_tokens + s->answer_tokens, s->cached_tokens, turn_reason_name(t->reason));
    turn_json_timing(t, b);
    if (explain) {
        buf_str(b, ", \"why\": ");
        out_json_string(b, s->prefill_why, strlen(s->prefill_why));
        buf_str(b, ", \"decode_why\": ");
        out_json_string(b, s->decode_why, strlen(s->decode_why));
        buf_fmt(b, ", \"prefill_expected_s\": %.6f, \"step_expected_s\": %.6f, \"step_s\": %.6f", s->prefill_expected_s, s->batch_expected_s, s->batch_s);
    }
    buf_char(b, '}');
}

void api_put_usage_chunk(struct buf *b, const struct api_answer *a, const struct turn *t, bool explain) {
    buf_str(b, "data: ");
    put_head(b, a, "chat.completion.chunk");
    buf_str(b, ", \"choices\": [], ");
    put_usage(b, t, explain);
    buf_str(b, "}\n\n");
}

void api_put_answer(struct buf *b, const struct api_answer *a, const struct turn *t, const struct tool_calls *calls, bool explain) {
    struct buf text = {0};
    buf_add(&text, t->text.data ? t->text.data : "", t->text.len);
    if (!calls->n && t->tool.len) buf_add(&text, t->tool.data, t->tool.len);
    if (text.failed) b->failed = true;
    put_head(b, a, "chat.completion");
    buf_str(b, ", \"choices\": [{\"index\": 0, \"message\": {\"role\": \"assistant\", ");
    if (calls->n && !text.len) buf_str(b, "\"content\": null");
    else api_put_text(b, OUTPUT_TEXT, text.data, text.len);
    if (t->thinking.len) {
        buf_str(b, ", ");
        api_put_text(b, OUTPUT_THINKING, t->thinking.data, t->thinking.len);
    }
    if (calls->n) {
        buf_str(b, ", ");
        api_put_calls(b, calls, a->id, false);
    }
    buf_str(b, "}, ");
    put_reason(b, api_finish_reason(t, calls));
    buf_str(b, "}], ");
    put_usage(b, t, explain);
    buf_str(b, "}\n");
    buf_free(&text);
}

void api_put_completion(struct buf *b, const struct api_answer *a, const struct turn *t, bool explain) {
    put_text_choice(b, a, t->text.data ? t->text.data : "", t->text.len, api_finish_reason(t, &(struct tool_calls){0}));
    buf_str(b, ", ");
    put_usage(b, t, explain);
    buf_str(b, "}\n");
}

int api_status(const struct error *e, const char **code) {
    *code = NULL;
    switch (e->code) {
    case ERR_USAGE: return 400;
    case ERR_CONTEXT: *code = "context_length_exceeded"; return 400;
    case ERR_MEMORY: return 503;
    default: return 500;
    }
}

void api_put_error(struct buf *b, int status, const char *code, const char *text) {
    buf_str(b, "{\"error\": {\"message\": ");
    out_json_string(b, text, strlen(text));
    buf_fmt(b, ", \"type\": \"%s\", \"param\": null, \"code\": ",
            status == 401 || status == 403 ? "authentication_error"
            : status >= 500                ? "server_error"
                                           : "invalid_request_error");
    if (code) out_json_string(b, code, strlen(code));
    else buf_str(b, "null");
    buf_str(b, "}}");
}
