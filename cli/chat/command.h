#pragma once
/* Lines that begin with '/': the chat commands. command.c has the table that names them. */
#include "cli/chat/chat.h"

/* false for a question, also one that begins with a path such as /etc/fstab */
bool command_is(const char *text);
bool command_runs_beside(const char *text); /* true if the command runs at once while an answer runs */
bool command_leaves(const char *text);      /* true for /bye and its aliases */
void command_run(struct repl *r, const char *text);
/* asks first if leaving stops background answers, in a hint below the edited line or as a message */
void command_request_exit(struct repl *r, bool as_hint);
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates);

/* command_session.c */
void command_new(struct repl *r, const char *arg);
void command_sessions(struct repl *r, const char *arg);
void command_switch(struct repl *r, const char *arg);
void command_close(struct repl *r, const char *arg);
void command_save(struct repl *r, const char *arg);
void command_load(struct repl *r, const char *arg);
void command_fork(struct repl *r, const char *arg);
void command_delete(struct repl *r, const char *arg);
void command_edit(struct repl *r, const char *arg);

/* command_conversation.c */
void command_system(struct repl *r, const char *arg);
void command_regen(struct repl *r, const char *arg);
void command_continue(struct repl *r, const char *arg);
void command_undo(struct repl *r, const char *arg);
void command_compact(struct repl *r, const char *arg);
void command_bg(struct repl *r, const char *arg);
void command_clear(struct repl *r, const char *arg);

/* command_model.c */
void command_agent(struct repl *r, const char *arg);
void command_model(struct repl *r, const char *arg);
void command_preset(struct repl *r, const char *arg);

/* command_attach.c */
void command_read(struct repl *r, const char *arg);
void command_attachments(struct repl *r, const char *arg);
void command_detach(struct repl *r, const char *arg);

/* command_text.c */
void command_copy(struct repl *r, const char *arg);
void command_export(struct repl *r, const char *arg);
void command_search(struct repl *r, const char *arg);

/* command_show.c */
void command_show(struct repl *r, const char *arg);
void command_set(struct repl *r, const char *arg);
void command_tokens(struct repl *r, const char *arg);
void command_stats(struct repl *r, const char *arg);
void command_explain(struct repl *r, const char *arg);

/* command_experts.c */
void command_experts(struct repl *r, const char *arg);
