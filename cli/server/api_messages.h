#pragma once
/* Builds the conversation that chat templates take (messages with role, content, reasoning_content, tool_calls; tools)
 * from the parts of each protocol. */
#include "cli/server/api.h"

struct json api_messages_word(const char *s); /* a string; s must outlive it */

/* A list of messages under construction, in the arena of the request. */
struct api_messages {
    struct api_request *request;
    struct json *items;
    uint32_t n, cap;
};
int api_messages_open(struct api_messages *m, struct api_request *r, uint32_t most, struct error *e);
/* Appends a message with a role and a content (NULL: none); ERR_MEMORY. */
int api_messages_add(struct api_messages *m, const char *role, const struct json *content, struct error *e);
/* Sets another member of the last message; at most 4. */
void api_messages_set(struct api_messages *m, const char *key, const struct json *value);
/* Makes an element of tool_calls. arguments: as given; the template's forms decide (tokenizer/chat/chat_forms.h). */
int api_messages_call(struct api_request *r, const struct json *id, const struct json *name,
                      const struct json *arguments, struct json *out, struct error *e);
/* Makes an element of tools; description and schema may be NULL. */
int api_messages_tool(struct api_request *r, const struct json *name, const struct json *description,
                      const struct json *schema, struct json *out, struct error *e);
/* Makes a list with room for the tools of a request's member `tools`, for the caller to fill: *list has the elements,
 * (*tools)->n counts them. *tools: NULL if there is no such member. */
int api_messages_open_tools(struct api_request *r, const struct json *from, struct json **tools, struct json **list,
                            struct error *e);
/* Checks that tools[i], in the form of a chat template, is a function with a name. */
int api_messages_check_tool(const struct json *tool, uint32_t i, struct error *e);
/* Reads the tool_choice of a chat or response: a word, also as the type of an object; a function, whose name may stand
 * beside the type; or allowed_tools. "any" is what Mistral's clients call required. */
int api_messages_read_choice(struct api_request *r, const struct json *choice, struct error *e);
/* Reads `thinking`, an object with a type, into *think: 1, 0, or unchanged if the model decides. */
int api_messages_read_thinking(const struct json *thinking, int *think, struct error *e);
/* Leaves out tools[i], whose type is another than that of the tools that a client carries out. strict: refuses it. */
int api_messages_skip_tool(struct api_request *r, uint32_t i, const struct json *type, const char *supported,
                           bool strict, struct error *e);
/* Makes an array of n items in the arena. */
int api_messages_array(struct api_request *r, uint32_t n, struct json *out, struct json **items, struct error *e);

/* Joins content parts into one text, the only form that templates and the model accept. A part is a string, or an
 * object with a type of `types` (separated by spaces) and a text under the name `text` or, of a refusal, `refusal`.
 * where: what messages call the list, such as "messages[3].content"; also: what else is supported there, after the
 * first of `types`, such as " and image_url". */
int api_messages_join(struct api_request *r, const struct json *parts, const char *types, const char *also,
                      const char *where, struct json *out, struct error *e);

/* Makes the JSON text of a value; ERR_MEMORY. */
int api_messages_json(struct api_request *r, const struct json *value, struct json *out, struct error *e);
/* Makes a string of the arena of what b holds, and frees b; ERR_MEMORY. */
int api_messages_take(struct api_request *r, struct buf *b, struct json *out, struct error *e);

/* Returns a system prompt, a string or a list of parts, without the headers that it begins with: lines, or whole parts,
 * of the form x-anthropic-NAME: VALUE. They are addressed to the service, and Claude Code's changes with every request,
 * so that nothing after it would be found in the prefix cache. */
struct json api_messages_without_headers(const struct json *content);

struct api_template_options {
    const struct json *kwargs; /* template variables of the client; NULL: none */
    const struct json *effort; /* how long to think; NULL: absent */
    int think;                 /* 1, 0, or -1: the template decides */
    bool no_generation_prompt;
};
/* Checks the tools and the choice of r and builds r->template_input. Variables come first, so that none of them can
 * shadow a later member. */
int api_messages_finish(struct api_request *r, const struct chat_template *chat, const struct json *messages,
                        const struct api_template_options *o, struct error *e);
