#pragma once
/* The sessions of a chat: opening, saving, clearing. */
#include "cli/chat/chat.h"

struct chat_session *chat_session_new(struct repl *r, const char *name);  /* NULL: no memory */
struct chat_session *chat_session_find(struct repl *r, const char *name); /* by name or number */
/* removes it from the list; it must not be answering */
void chat_session_free(struct repl *r, struct chat_session *t);
void chat_session_save(struct repl *r, struct chat_session *t); /* saves soon, without waiting for the disk */
/* reports failed writes since the last call; true if there were any */
bool chat_session_report_unsaved(void);
/* a turn or a tool runs, or a tool call waits for consent */
bool chat_session_is_answering(const struct chat_session *t);
const struct chat_session *chat_session_answering(const struct repl *r); /* one that is answering, or NULL */
/* Closes the clients and prompts of all sessions, which belong to the open engine; the conversations stay. */
void chat_session_leave_engine(struct repl *r);
/* true, with a message, while it is answering */
bool chat_session_report_busy(struct repl *r, struct chat_session *t);
void chat_session_clear(struct repl *r, struct chat_session *t);
/* restores what chat_session_clear put aside; false if there is nothing */
bool chat_session_undo_clear(struct chat_session *t);
/* the session that has cleared this conversation, or NULL */
struct chat_session *chat_session_find_cleared(struct repl *r, const char *name);
/* gives up what /undo could restore, so that its file can be opened or deleted */
void chat_session_drop_cleared(struct repl *r, const char *name);
