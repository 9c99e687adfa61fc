#include "cli/server/anthropic_blocks.h"

#include "cli/server/api_members.h"
#include "cli/server/api_messages.h"

/* A line of a member that is a text. */
static void put_line(struct buf *b, const struct json *block, const char *member) {
    const struct json *text = json_get(block, member);
    if (!text || text->type != JSON_STRING || !text->n) return;
    buf_add(b, text->string, text->n);
    buf_char(b, '\n');
}

/* The text of a string, or of a list of blocks of text. */
static int put_content(struct api_request *r, struct buf *b, const struct json *content, const char *where,
                       struct error *e) {
    struct json text = api_messages_word("");
    if (content && content->type == JSON_STRING) text = *content;
    else if (content && content->type == JSON_ARRAY) TRY(api_messages_join(r, content, "text", "", where, &text, e));
    buf_add(b, text.string, text.n);
    return buf_str(b, "\n\n"), 0;
}

static int put_document(struct api_request *r, struct buf *b, const struct json *block, const char *where,
                        struct error *e) {
    const struct json *source = json_get(block, "source"), *kind = json_get(source, "type");
    const bool is_text = json_is(kind, "text");
    if (!is_text && !json_is(kind, "content"))
        return error_set(e, ERR_USAGE,
                         "%s: document: only sources of type text and content are read; send the text of a PDF", where);
    put_line(b, block, "title");
    put_line(b, block, "context");
    return put_content(r, b, json_get(source, is_text ? "data" : "content"), where, e);
}

static int put_search_result(struct api_request *r, struct buf *b, const struct json *block, const char *where,
                             struct error *e) {
    put_line(b, block, "title");
    put_line(b, block, "source");
    return put_content(r, b, json_get(block, "content"), where, e);
}

/* A tool that a search of the client's has found; the request has its definition among the others. */
static int put_reference(struct api_request *r, struct buf *b, const struct json *block, const char *where,
                         struct error *e) {
    buf_str(b, "tool: ");
    put_line(b, block, "tool_name");
    return 0;
}

/* The summary that stands for an earlier part of the conversation. */
static int put_compaction(struct api_request *r, struct buf *b, const struct json *block, const char *where,
                          struct error *e) {
    return put_content(r, b, json_get(block, "content"), where, e);
}

static const struct {
    const char *type;
    int (*put)(struct api_request *r, struct buf *b, const struct json *block, const char *where, struct error *e);
} texts[] = {{"document", put_document},
             {"search_result", put_search_result},
             {"tool_reference", put_reference},
             {"compaction", put_compaction}};

/* Whether another server has made the block: a use of a tool that it has carried out itself, or the result. */
static bool is_elsewhere(const struct json *type) {
    return json_ends_in(type, "_tool_use") || json_ends_in(type, "_tool_result");
}

/* Makes a block of text. */
static int make_text(struct api_request *r, const struct json *text, struct json *out, struct error *e) {
    struct json *m = arena_alloc(&r->arena, 4 * sizeof *m);
    if (!m) return error_set(e, ERR_MEMORY, "no memory");
    m[0] = api_messages_word("type"), m[1] = m[2] = api_messages_word("text"), m[3] = *text;
    *out = (struct json){.type = JSON_OBJECT, .n = 2, .items = m};
    return 0;
}

int anthropic_plain_blocks(struct api_request *r, const struct json *blocks, const char *where, struct json *out,
                           struct error *e) {
    struct json *list;
    TRY(api_messages_array(r, blocks->n, out, &list, e));
    out->n = 0;
    for (uint32_t i = 0; i < blocks->n; i++) {
        const struct json *block = &blocks->items[i], *type = json_get(block, "type");
        size_t k = 0;
        while (k < sizeof texts / sizeof *texts && !json_is(type, texts[k].type)) k++;
        if (k < sizeof texts / sizeof *texts) {
            struct buf b = {0};
            struct json text;
            const int rc = texts[k].put(r, &b, block, where, e);
            if (rc) return buf_free(&b), rc;
            TRY(api_messages_take(r, &b, &text, e));
            TRY(make_text(r, &text, &list[out->n++], e));
        } else if (!is_elsewhere(type)) list[out->n++] = *block;
    }
    return 0;
}
