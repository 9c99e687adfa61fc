#pragma once
/* Signals. By default SIGINT, SIGTERM and SIGHUP restore the terminal and end the process. During an answer they are
 * recorded instead: the answer is cancelled, and the caller saves and exits. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

void sig_init(void);
/* After sig_defer, SIGINT is recorded and calls cancel(ctx), unless ctx is NULL; a second one before
 * sig_clear_interrupt ends the process. SIGTERM and SIGHUP likewise. sig_undefer restores the default. cancel is
 * async-signal-safe. */
void sig_defer(void (*cancel)(void *ctx), void *ctx);
void sig_undefer(void);
void sig_clear_interrupt(void); /* clears the recorded SIGINT */
bool sig_interrupted(void);
int sig_terminated(void); /* SIGTERM or SIGHUP if one was recorded, or 0 */
bool sig_resized(void);   /* SIGWINCH or SIGCONT since the last call */
bool sig_continued(void); /* stopped and continued since the last call: the shell has written below what was drawn */
int sig_fd(void);         /* readable after a signal was recorded; sig_drain empties it */
void sig_drain(void);
void sig_wake(void); /* makes sig_fd readable, from another thread */
/* sets the function that sig_die calls after it restores the terminal; async-signal-safe */
void sig_at_exit(void (*fn)(void));
/* Starts a thread in which the signals of the process are blocked: they belong to the terminal thread. Faults stay
 * enabled. false: errno says why there is none. */
bool sig_start_thread(pthread_t *t, void *(*fn)(void *), void *arg);
_Noreturn void sig_die(int sig); /* restores the terminal, then the default action */
