#include "cli/turn/prompt.h"

#include <string.h>

#include "cli/app.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/template_vars.h"
#include "engine/ember/topic.h"

enum { PROMPT_TAIL_BYTES = 512 };

void prompt_free(struct prompt *p) {
    ids_free(&p->ids);
    ids_free(&p->fixed_answer);
    prompt_images_free(&p->images);
    buf_free(&p->tail);
    buf_free(&p->body);
    buf_free(&p->begun_call);
    buf_free(&p->refusal);
    *p = (struct prompt){0};
}

int prompt_think_option(const struct opts *o) { return o->v[OPT_THINK].text ? o->v[OPT_THINK].on : -1; }

/* Sets out->refusal if the built-in model refuses the conversation; also when a resident engine runs it. */
static int find_refusal(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    if (strcmp(a->model_dir, "ember:") != 0) return 0;
    int rc = a->topic ? 0 : topic_open(&a->topic, e);
    const struct json *refusal = rc || !a->topic ? NULL : topic_fixed_answer(a->topic, conv);
    if (refusal && buf_add(&out->refusal, refusal->string, refusal->n)) rc = error_set(e, ERR_MEMORY, "no memory");
    return rc;
}

int prompt_from_json(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    int rc = a->backend->make_prompt(a, conv, out, e);
    return rc ? rc : find_refusal(a, conv, out, e);
}

int prompt_check_refusal(const struct prompt *p, struct error *e) {
    struct buf line = {0};
    if (!p->refusal.len) return 0;
    for (size_t i = 0; i < p->refusal.len; i++) {
        bool blank = (unsigned char)p->refusal.data[i] <= ' ';
        if (!blank) buf_char(&line, p->refusal.data[i]);
        else if (line.len && line.data[line.len - 1] != ' ') buf_char(&line, ' ');
    }
    int rc = error_set(e, ERR_USAGE, "%s", line.data ? line.data : "");
    buf_free(&line);
    return rc;
}

/* Returns the length of the shareable prefix in tokens: the system prompt and the documents before the last paragraph
 * of the first question, measured by rendering only these. 0 if it is short, or cannot be rendered separately.
 * Negative: no memory, which is an error, since a prompt that is prefilled in other parts may give another answer. */
static int count_shareable(struct app *a, const struct json *conv, const struct ids *all, struct error *e) {
    enum { SHORT = 1024 }; /* bytes */
    const struct json *list = json_get(conv, "messages"), *question_text = NULL;
    uint32_t n = 0;
    size_t question_bytes = 0, earlier_bytes = 0;
    while (list && list->type == JSON_ARRAY && n < list->n && !question_text) {
        const struct json *m = &list->items[n++], *content = json_get(m, "content");
        bool user = json_is(json_get(m, "role"), "user");
        if (!content || content->type != JSON_STRING) return 0;
        if (user) question_text = content;
        else earlier_bytes += content->n;
    }
    for (size_t i = 0; question_text && i + 1 < question_text->n; i++)
        if (question_text->string[i] == '\n' && question_text->string[i + 1] == '\n') question_bytes = i + 2;
    if (!question_text || earlier_bytes + question_bytes < SHORT) return 0;
    /* copy conv without what follows the cut question; an object has its keys and values as items */
    struct json *items = mem_alloc(n * sizeof *items), *members = mem_alloc(2 * conv->n * sizeof *members),
                *question = NULL, root = *conv;
    const struct json *m = &list->items[n - 1];
    struct text rendered = {0};
    struct ids ids = {0};
    int n_shared = 0, rc = ERR_MEMORY;
    if (items && members && (question = mem_alloc(2 * m->n * sizeof *question))) {
        memcpy(items, list->items, n * sizeof *items);
        memcpy(question, m->items, 2 * m->n * sizeof *question);
        memcpy(members, conv->items, 2 * conv->n * sizeof *members);
        for (uint32_t i = 0; i < m->n; i++)
            if (json_is(&question[2 * i], "content")) question[2 * i + 1].n = (uint32_t)question_bytes;
        for (uint32_t i = 0; i < conv->n; i++)
            if (json_is(&members[2 * i], "messages")) members[2 * i + 1].items = items, members[2 * i + 1].n = n;
        items[n - 1].items = question;
        root.items = members;
        struct error why;
        rc = chat_template_render_prompt(a->template, &root, &rendered, &why);
        if (!rc) rc = tokenizer_encode_text(a->tokenizer, &rendered, &ids, &why);
        while (!rc && (size_t)n_shared < ids.n && (size_t)n_shared < all->n &&
               ids.data[n_shared] == all->data[n_shared])
            n_shared++;
    }
    text_free(&rendered);
    ids_free(&ids);
    mem_free(items);
    mem_free(members);
    mem_free(question);
    return rc == ERR_MEMORY ? error_set(e, ERR_MEMORY, "no memory") : n_shared;
}

/* Refuses texts that templates cannot hold, of which no context has room either. */
static int check_length(const struct json *conv, struct error *e) {
    enum { MOST = 64 << 20 };
    const struct json *list = json_get(conv, "messages");
    size_t n = 0;
    char size[32];
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const struct json *content = json_get(&list->items[i], "content");
        if (content && content->type == JSON_STRING) n += content->n;
    }
    if (n <= MOST) return 0;
    return error_set(e, ERR_CONTEXT,
                     "prompt is too long: %s of text, more than hearth takes (64 MB) and any context holds",
                     amount_bytes(n, size, sizeof size));
}

static int render_local(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    struct text text = {0};
    int rc = check_length(conv, e);
    if (!rc && !out->images.n) rc = prompt_images_open(a, conv, NULL, NULL, &out->images, e);
    if (!rc) rc = chat_template_render_prompt(a->template, conv, &text, e);
    if (rc) return rc;
    rc = tokenizer_encode_text(a->tokenizer, &text, &out->ids, e);
    if (!rc) rc = prompt_images_place(a, &out->images, &out->ids, e);
    size_t keep = text.n < PROMPT_TAIL_BYTES ? text.n : PROMPT_TAIL_BYTES;
    if (!rc && keep && buf_add(&out->tail, text.data + text.n - keep, keep)) rc = error_set(e, ERR_MEMORY, "no memory");
    out->n_given = out->ids.n;
    text_free(&text);
    int shared = rc ? rc : count_shareable(a, conv, &out->ids, e);
    if (shared < 0) return shared;
    out->n_shareable = shared;
    return 0;
}

int prompt_from_json_local(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    struct arena arena = {0};
    const struct json *tools = json_get(conv, "tools");
    if (tools && tools->type == JSON_ARRAY && tools->n && !chat_template_takes_tools(a->template))
        return error_set(e, ERR_USAGE, "tools are not supported: this model's chat template does not use them");
    if (strcmp(a->model_dir, "ember:") != 0) return render_local(a, conv, out, e);
    int rc = a->topic ? 0 : topic_open(&a->topic, e);
    if (!rc && !a->topic) return render_local(a, conv, out, e);
    const struct json *fixed = rc ? NULL : topic_fixed_answer(a->topic, conv),
                      *input = rc ? NULL : topic_model_input(a->topic, conv, &arena);
    if (!rc && !input) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = render_local(a, input, out, e);
    const struct json *list = json_get(conv, "messages"), *kept = json_get(input, "messages");
    if (!rc && !fixed && list != kept && kept->n)
        out->document_dropped =
            json_get(&list->items[list->n - 1], "content") != json_get(&kept->items[kept->n - 1], "content");
    if (!rc && fixed) rc = tokenizer_encode(a->tokenizer, fixed->string, fixed->n, TEXT_VALUE, &out->fixed_answer, e);
    arena_free(&arena);
    return rc;
}

void prompt_note_dropped_document(void) {
    report_note("ember, the built-in model, cannot read documents; it gets only the question");
}

static int render_messages(struct app *a, const struct conversation *c, int think, const char *opening,
                           struct prompt *out, struct error *e) {
    struct buf b = {0};
    struct arena arena = {0};
    struct json root;
    const bool local = a->backend->is_local;
    const enum message_form form = local ? MESSAGE_TEMPLATE : MESSAGE_REQUEST;
    if (local && conversation_has_calls(c) && !chat_template_takes_tools(a->template))
        return error_set(e, ERR_USAGE,
                         "the conversation has tool calls, which this model's chat template does not use; continue it "
                         "with another model");
    buf_str(&b, "{\"messages\": [");
    for (size_t i = 0; i < c->n; i++) {
        buf_str(&b, i ? ", " : "");
        conversation_message_json(&c->messages[i], form, &b);
        buf_char(&b, '}');
    }
    buf_fmt(&b, "], \"%s\": true", opening);
    if (a->tool_list.len) buf_fmt(&b, ", \"tools\": %s", a->tool_list.data);
    int rc = template_vars_put(a, think, &b, e);
    buf_char(&b, '}');
    if (!rc)
        rc = b.failed ? error_set(e, ERR_MEMORY, "no memory for the conversation")
                      : json_parse(&arena, b.data, b.len, 0, "conversation", &root, e);
    if (!rc) rc = prompt_from_json(a, &root, out, e);
    arena_free(&arena);
    buf_free(&b);
    return rc;
}
int prompt_make(struct app *a, const struct conversation *c, int think, struct prompt *out, struct error *e) {
    return render_messages(a, c, think, "add_generation_prompt", out, e);
}

int prompt_add_partial(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e) {
    const size_t n_before = out->ids.n;
    int rc = tokenizer_encode(a->tokenizer, text, n, TEXT_VALUE, &out->ids, e);
    out->n_given = out->ids.n;
    out->n_partial = out->ids.n - n_before;
    ids_free(&out->fixed_answer);
    return !rc && buf_add(&out->tail, text, n) ? error_set(e, ERR_MEMORY, "no memory") : rc;
}
int prompt_make_partial(struct app *a, const struct conversation *c, int think, struct prompt *out, struct error *e) {
    if (!a->backend->is_local) return render_messages(a, c, think, "continue_final_message", out, e);
    const struct conversation before = {.messages = c->messages, .n = c->n - 1};
    const struct buf *text = &c->messages[c->n - 1].text;
    int rc = prompt_make(a, &before, think, out, e);
    return rc ? rc : prompt_add_partial(a, text->data ? text->data : "", text->len, out, e);
}

int prompt_from_raw(struct app *a, const char *text, size_t n, bool takes_control, struct prompt *out,
                    struct error *e) {
    if (!a->backend->is_local)
        return error_set(e, ERR_USAGE, "--raw: a remote engine takes only conversations, not prompt text");
    const int32_t bos = tokenizer_bos(a->tokenizer);
    struct ids *ids = &out->ids;
    if (bos >= 0) {
        if (mem_grow(&ids->data, &ids->cap, 1, sizeof *ids->data)) return error_set(e, ERR_MEMORY, "no memory");
        ids->data[ids->n++] = bos;
    }
    int rc = tokenizer_encode(a->tokenizer, text, n, takes_control ? TEXT_TEMPLATE : TEXT_VALUE, ids, e);
    if (!rc && bos >= 0 && ids->n > 1 && ids->data[1] == bos)
        memmove(ids->data, ids->data + 1, --ids->n * sizeof *ids->data);
    if (!rc && !ids->n) rc = error_set(e, ERR_USAGE, "no prompt: the text is empty and the model has no BOS");
    out->n_given = ids->n;
    return rc;
}
