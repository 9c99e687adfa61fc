#pragma once
/* Signals. By default SIGINT, SIGTERM and SIGHUP restore the terminal and end the process at once, by the signal. While
 * an answer runs they are noted instead: the answer is cancelled, and whoever drives it saves and leaves. */
#include <signal.h>
#include <stdbool.h>

struct seat;

void sig_init(void);
/* From now on SIGINT cancels s (may be NULL: it is only noted) and is noted; a second one before sig_forget ends the
 * process. SIGTERM and SIGHUP likewise. sig_release goes back to ending at once. */
void sig_hold(struct seat *s);
void sig_release(void);
void sig_forget(void); /* the noted SIGINT is dealt with */
bool sig_interrupted(void);
int sig_terminated(void); /* SIGTERM or SIGHUP when one was noted, or 0 */
bool sig_resized(void);   /* SIGWINCH or SIGCONT since the last call */
bool sig_continued(void); /* stopped and going on since the last call: what was drawn is behind what the shell wrote */
int sig_fd(void);         /* readable after a signal was noted; sig_drain empties it */
void sig_drain(void);
void sig_wake(void);             /* makes sig_fd readable; for another thread */
_Noreturn void sig_die(int sig); /* terminal restored, default action */
