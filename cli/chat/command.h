#pragma once
/* The chat commands. command.c has the table that names them. */
#include "cli/chat/chat.h"

/* command_session.c */
void cmd_new(struct repl *r, const char *arg);
void cmd_sessions(struct repl *r, const char *arg);
void cmd_switch(struct repl *r, const char *arg);
void cmd_close(struct repl *r, const char *arg);
void cmd_save(struct repl *r, const char *arg);
void cmd_load(struct repl *r, const char *arg);
void cmd_fork(struct repl *r, const char *arg);
void cmd_delete(struct repl *r, const char *arg);
void cmd_edit(struct repl *r, const char *arg);

/* command_conversation.c */
void cmd_system(struct repl *r, const char *arg);
void cmd_regen(struct repl *r, const char *arg);
void cmd_continue(struct repl *r, const char *arg);
void cmd_undo(struct repl *r, const char *arg);
void cmd_compact(struct repl *r, const char *arg);
void cmd_bg(struct repl *r, const char *arg);
void cmd_clear(struct repl *r, const char *arg);

/* command_model.c */
void cmd_model(struct repl *r, const char *arg);
void cmd_preset(struct repl *r, const char *arg);

/* command_attach.c */
void cmd_read(struct repl *r, const char *arg);
void cmd_attachments(struct repl *r, const char *arg);
void cmd_detach(struct repl *r, const char *arg);

/* command_text.c */
void cmd_copy(struct repl *r, const char *arg);
void cmd_export(struct repl *r, const char *arg);
void cmd_search(struct repl *r, const char *arg);

/* command_show.c */
void cmd_show(struct repl *r, const char *arg);
void cmd_set(struct repl *r, const char *arg);
void cmd_tokens(struct repl *r, const char *arg);
void cmd_stats(struct repl *r, const char *arg);
void cmd_explain(struct repl *r, const char *arg);

/* command_experts.c */
void cmd_experts(struct repl *r, const char *arg);
