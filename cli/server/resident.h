#pragma once
/* Location and identity of a user's resident engine: a directory that only the user can enter, a lock held as long as
 * the process lives, and a socket, which is valid only while the lock is held. */
#include <sys/types.h>
#include <sys/un.h>

#include "cli/app.h"

enum { RESIDENT_PATH = sizeof((struct sockaddr_un *)0)->sun_path };
/* Copies the socket's path. ERR_RUNTIME without a home directory, or if the path is too long for a socket. */
int resident_path(char path[static RESIDENT_PATH], struct error *e);
/* True if a process accepts connections there; opens and closes one connection. */
bool resident_is_alive(const char *path);
/* Takes the lock: keep *lock open. ERR_RUNTIME when another process has it, or the directory is not private. */
int resident_claim(int *lock, struct error *e);
/* Listens on path; the lock must be held. Replaces the socket of a killed process. */
int resident_listen(int *fd, const char *path, struct error *e);
/* True if the peer of an accepted connection is the same user. */
bool resident_peer_is_user(int fd);
/* Returns the peer's pid and its process group (a shell's job); 0: not visible from this PID namespace. */
pid_t resident_peer(int fd, pid_t *job);

/* Sends a request to the resident engine, with a body or NULL, and appends the reply's body. ERR_CANCELLED: no engine
 * is running; ERR_RUNTIME: it does not answer, or refuses. */
int resident_request(const char *method, const char *what, const struct buf *body, struct buf *reply, struct error *e);
/* Appends the identity of this build: one line of JSON. ERR_MEMORY. */
int resident_build(struct buf *out);
/* Appends what decides whether an engine fits the options: the model, the state of its files, and every option that
 * affects opening it. One line of JSON. */
int resident_identity(struct app *a, struct buf *out, struct error *e);
