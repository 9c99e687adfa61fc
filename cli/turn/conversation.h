#pragma once
/* A conversation: its messages. */
#include <stdbool.h>

#include "engine/base/buf.h"

enum role { ROLE_SYSTEM, ROLE_USER, ROLE_ASSISTANT };
const char *conversation_role_name(enum role r);

struct message {
    enum role role;
    bool partial; /* an answer that was stopped */
    struct buf text, thinking;
};
struct conversation {
    struct message *messages;
    size_t n, cap;
};
/* These functions copy their arguments. On ERR_MEMORY the conversation is unchanged. */
int conversation_add(struct conversation *c, enum role role, const char *text, size_t n, const char *thinking, size_t thinking_n);
int conversation_set_system(struct conversation *c, const char *text); /* sets or replaces the first message; "" removes it */
int conversation_append(struct conversation *to, const struct conversation *from);
void conversation_truncate(struct conversation *c, size_t n); /* keeps the first n messages */
void conversation_free(struct conversation *c);
const struct message *conversation_last(const struct conversation *c, enum role role); /* NULL: none */
size_t conversation_n_questions(const struct conversation *c);                         /* number of user messages */

/* Returns the user's text after the attached documents, or NULL. Appends their names to documents as "(a.txt) (b.txt)". */
const char *conversation_question(const struct message *m, struct buf *documents);
/* Appends a title of at most `cols` columns: the first question. Appends nothing if there is none. */
void conversation_title(const struct conversation *c, int cols, struct buf *out);

/* Appends a message as JSON without its closing brace: role, content, and the reasoning under the key `thinking`. */
void conversation_message_json(const struct message *m, const char *thinking, struct buf *b);
