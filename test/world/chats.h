#pragma once
/* Texts of chats as tokens, as saved conversations, and as versions that the disk may hold. */
#include "cli/turn/conversation.h"
#include "test/world/world.h"

char chats_byte(int token);
int chats_start(const struct chat *c);                /* tokens of the text that its prompts begin with */
void chats_add(struct chat *c, int role, int which);  /* one of a few texts */
bool chats_is_long(const struct chat *c);             /* another question and answer may not fit */
int chats_tokens(const struct chat *c, int32_t *out); /* the prompt; at most CONTEXT */

void chats_to_conversation(const struct chat *c, struct conversation *conv);
void chats_from_conversation(const struct conversation *conv, struct user *p); /* the chat, and the only version */
void chats_try(struct user *p);                                                /* the chat is being saved */
void chats_acknowledge(struct user *p);                                        /* the version tried last is on disk */
void chats_forget(struct user *p);                                             /* there is none */
bool chats_may_hold(const struct user *p, const struct conversation *conv);
