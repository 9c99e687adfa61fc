#pragma once
/* A conversation: its messages, among them tool calls and their results. */
#include <stdbool.h>

#include "base/buf.h"
#include "cli/turn/image_files.h"
#include "tokenizer/chat/tool_calls.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT, ROLE_TOOL };
enum { N_ROLES = ROLE_TOOL + 1 };
const char *conversation_role_name(enum role r);

struct message {
    enum role role;
    bool partial;              /* an answer that was stopped */
    struct image_files images; /* of ROLE_USER */
    struct buf text, thinking; /* text of ROLE_TOOL: the result of a call */
    struct tool_calls calls;   /* of ROLE_ASSISTANT; ROLE_TOOL: the call that it answers, without arguments */
};
struct conversation {
    struct message *messages;
    size_t n, cap;
};
/* These functions copy their arguments. On ERR_MEMORY the conversation is unchanged. */
int conversation_add(struct conversation *c, enum role role, const char *text, size_t n, const char *thinking,
                     size_t thinking_n);
int conversation_add_calls(struct conversation *c, const struct tool_calls *calls); /* to the last message */
int conversation_add_result(struct conversation *c, const struct tool_call *call, const char *text, size_t n);
/* adds a question, after an empty answer if the last question has none */
int conversation_ask(struct conversation *c, const char *text, size_t n);
/* adds images to the last message; at: byte of its text at which theirs began */
int conversation_add_images(struct conversation *c, const struct image_files *images, size_t at);
bool conversation_has_images(const struct conversation *c);
/* gives those calls of the last answer that lack a result this one */
int conversation_complete_calls(struct conversation *c, const char *text);
/* sets or replaces the first message; "" removes it */
int conversation_set_system(struct conversation *c, const char *text);
int conversation_append(struct conversation *to, const struct conversation *from);
void conversation_truncate(struct conversation *c, size_t n); /* keeps the first n messages */
void conversation_free(struct conversation *c);
const struct message *conversation_last(const struct conversation *c, enum role role); /* NULL: none */
size_t conversation_n_questions(const struct conversation *c);                         /* number of user messages */
bool conversation_has_calls(const struct conversation *c);

/* Returns the end of the document with which s begins, or NULL; *name ends at a quote, *n is the length of the text in
 * bytes. */
const char *conversation_document_end(const char *s, const char **name, size_t *n);
/* Returns the user's text after the attached documents, or NULL. Appends their names to documents as "(a.txt)
 * (b.txt)". */
const char *conversation_question(const struct message *m, struct buf *documents);
/* Appends a title of at most `cols` columns: the first question. Appends nothing if there is none. */
void conversation_title(const struct conversation *c, int cols, struct buf *out);

/* Appends a message as JSON without its closing brace, as a session file, a chat template or a chat-completions request
 * has it. */
enum message_form { MESSAGE_SAVED, MESSAGE_TEMPLATE, MESSAGE_REQUEST };
void conversation_message_json(const struct message *m, enum message_form form, struct buf *b);
