#pragma once
/* The two output streams. Everything written passes here, so that a closed pipe, a full disk and a closed descriptor are
 * each noticed once and handled in one way; and so that nothing reaches a terminal that could command it, whoever wrote
 * it: out_write and out_err filter (render.h) where their stream is a terminal, and are faithful to the byte elsewhere.
 * No other file of cli/ writes to descriptors 1 and 2, the terminal's mode (term.c) aside. */
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"

/* Opens /dev/null in place of descriptors 0..2 that are closed, so that no file lands there. Call first of all. */
void out_init(void);
bool out_stdin_closed(void);
bool out_terminal(int fd); /* 0..2, as they were at the start */
/* To stdout, all or nothing more: after a failure later calls do nothing. Returns 0 or ERR_RUNTIME. */
int out_write(const void *data, size_t n);
/* How stdout stands at the end: 0; ERR_RUNTIME with the reason. A closed pipe ends the process as SIGPIPE would. */
int out_check(struct error *e);
bool out_failed(void);
/* To stderr; failures are ignored. Needs no memory. */
void out_err(const void *data, size_t n);
/* From now on what stderr does not take at once is dropped: a server has others to serve than who stopped its terminal, or does not read its pipe. */
void out_err_never_waits(void);
/* What hearth itself makes for a terminal: escape sequences, and the line editor's picture, which has been through a
 * filter of its own. Not filtered, so nothing of another origin may be in it. fd: 1 or 2. Returns as out_write. */
int out_draw(int fd, const char *own, size_t n);
/* To stderr, from a signal handler: async-signal-safe. */
void out_signal(const char *text);

/* Appends text as valid UTF-8: each maximal broken sequence becomes U+FFFD. Returns how many were replaced. */
size_t out_utf8(struct buf *b, const char *s, size_t n);
/* Appends a JSON string that is always valid UTF-8. */
void out_json_string(struct buf *b, const char *s, size_t n);
