#pragma once
/* The two output streams. All output passes through this file, so that a closed pipe, a full disk and a closed
 * descriptor are each handled once and in one way, and no text from elsewhere can control the terminal: out_write and
 * out_err sanitize if their stream is a terminal, and are byte-exact otherwise. No other file of cli/ writes to
 * descriptors 1 and 2, except term.c for the terminal mode. */
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/error.h"

/* Opens /dev/null for each closed descriptor of 0..2, so that no later file gets that number. Call before anything
 * else. */
void out_init(void);
bool out_stdin_closed(void);
bool out_terminal(int fd); /* 0..2, as at start */
/* Writes to stdout. After a failure later calls do nothing. Returns 0 or ERR_RUNTIME. */
int out_write(const void *data, size_t n);
enum { OUT_CLOSED_PIPE = 1 };
/* Reports the state of stdout: 0; ERR_RUNTIME with the reason; or OUT_CLOSED_PIPE, which is to end the process as
 * SIGPIPE would. */
int out_check(struct error *e);
bool out_failed(void);
bool out_wrote(void); /* out_write was called with any bytes */
/* Writes to stderr; failures are ignored. Allocates nothing. */
void out_err(const void *data, size_t n);
/* Makes stderr non-blocking: output that stderr does not accept at once is dropped. For the server, which must not stop
 * for a suspended terminal or an unread pipe. */
void out_err_nonblocking(void);
/* Writes terminal output made by hearth itself: escape sequences, and text that has been sanitized. Not filtered, so it
 * must not contain text of another origin. fd: 1 or 2. Returns as out_write. */
int out_draw(int fd, const char *own, size_t n);
/* Writes to stderr from a signal handler: async-signal-safe. */
void out_signal(const char *text);

/* Appends text as valid UTF-8: each maximal invalid sequence becomes U+FFFD. Returns the number of replacements. */
size_t out_utf8(struct buf *b, const char *s, size_t n);
/* Appends a JSON string, as valid UTF-8. */
void out_json_string(struct buf *b, const char *s, size_t n);
