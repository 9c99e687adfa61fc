#pragma once
/* The place of the one resident engine of a user: a directory that nobody else may enter, with a lock that lives as long as
 * the process that holds it, and a socket that means nothing without the lock. */
#include <sys/types.h>
#include <sys/un.h>

#include "cli/app.h"

enum { RESIDENT_PATH = sizeof((struct sockaddr_un *)0)->sun_path };
/* The socket's path. ERR_RUNTIME when there is no home directory, or the path is too long for a socket. */
int resident_path(char path[static RESIDENT_PATH], struct error *e);
/* Whether somebody listens there now; one connection is made and closed. */
bool resident_alive(const char *path);
/* Takes the place: *lock is to be kept open. ERR_RUNTIME when another has it, or the directory is not ours alone. */
int resident_claim(int *lock, struct error *e);
/* Listens there; the lock is held. What a killed one left is replaced. */
int resident_listen(int *fd, const char *path, struct error *e);
/* Whoever is at the other end of an accepted connection is this user. */
bool resident_is_us(int fd);
/* The process there, and the group that it was started in, which is what a shell calls a job; 0: not to be seen from here. */
pid_t resident_peer(int fd, pid_t *job);

/* Asks the resident engine, with a body or NULL; the reply's body is appended. ERR_CANCELLED: there is none; ERR_RUNTIME: it does not
 * answer, or not as it should. */
int resident_ask(const char *method, const char *what, const struct buf *body, struct buf *reply, struct error *e);
/* Which build of hearth this is; one line of JSON, appended. ERR_MEMORY. */
int resident_build(struct buf *out);
/* What decides whether an engine is the one that the options ask for: the model with the state of its files, and every option that
 * goes into opening it; one line of JSON. */
int resident_identity(struct app *a, struct buf *out, struct error *e);
