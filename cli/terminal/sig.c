#include "cli/terminal/sig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/terminal/out.h"
#include "cli/terminal/term.h"

/* Handlers may run on any thread. */
static _Atomic int deferring, interrupted, terminated, resized, continued;
static _Atomic int stopping; /* threads in on_stop */
static void (*_Atomic cancel_fn)(void *);
static void *_Atomic cancel_ctx;
static void (*_Atomic at_exit)(void);
static int wake_pipe[2] = {-1, -1};

void sig_wake(void) {
    int saved = errno;
    if (wake_pipe[1] >= 0 && write(wake_pipe[1], "", 1) < 0) errno = saved; /* a full pipe is readable too */
    errno = saved;
}

_Noreturn void sig_die(int sig) {
    sigset_t set;
    term_restore();
    if (at_exit) at_exit();
    file_out_abandon();
    signal(sig, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, sig);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(sig);
    _exit(128 + sig);
}

static void on_end(int sig) {
    int saved = errno;
    if (!deferring || (sig == SIGINT ? interrupted : terminated)) sig_die(sig);
    if (sig == SIGINT) interrupted = 1;
    else terminated = sig;
    void *ctx = cancel_ctx;
    if (ctx) cancel_fn(ctx);
    sig_wake();
    errno = saved;
}

static void on_resize(int sig) {
    resized = 1;
    sig_wake();
}

static void on_continue(int sig) {
    /* that thread calls this once the terminal is raw again; a line drawn earlier would invite typing into a terminal
     * in line mode */
    if (stopping) return;
    int saved = errno;
    term_restore_raw();
    errno = saved;
    continued = 1;
    on_resize(sig);
}

static void on_stop(int sig) {
    int saved = errno;
    sigset_t set;
    bool raw = term_is_raw();
    stopping++;
    term_restore();
    signal(SIGTSTP, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &set, NULL); /* the process stops and continues here */
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGTSTP, on_stop);
    if (raw) term_raw();
    errno = saved;
    stopping--;
    on_continue(sig);
}

static void on_crash(int sig) {
    term_restore();
    file_out_abandon();
    signal(sig, SIG_DFL);
    raise(sig);
}

/* --- a weight file that shrank under its mapping ---------------------------------------------- */

/* Reports the file. Several threads may fault at once: the first one reports and exits, the others wait. */
static void on_bus(int sig, siginfo_t *info, void *context) {
    static atomic_flag reporting = ATOMIC_FLAG_INIT;
    while (atomic_flag_test_and_set(&reporting)) pause();
    const char *path = file_map_owner(info->si_addr);
    term_restore();
    file_out_abandon();
    out_signal("\nhearth: ");
    if (path) out_signal(path);
    out_signal(path ? ": the file was truncated or could not be read while in use\n"
                    : "a file in use was truncated or could not be read\n");
    _exit(3);
}

void sig_init(void) {
    struct sigaction sa = {.sa_flags = SA_RESTART};
    sigemptyset(&sa.sa_mask);
    /* without the pipe a recorded signal waits for the next event */
    error_ignore(pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* past ulimit -f a write fails with EFBIG, which is reported */
    static const struct {
        int sig;
        void (*fn)(int);
    } rows[] = {{SIGINT, on_end},       {SIGTERM, on_end},   {SIGHUP, on_end},    {SIGWINCH, on_resize},
                {SIGCONT, on_continue}, {SIGTSTP, on_stop},  {SIGQUIT, on_crash}, {SIGSEGV, on_crash},
                {SIGABRT, on_crash},    {SIGFPE, on_crash},  {SIGILL, on_crash},  {SIGSYS, on_crash},
                {SIGTRAP, on_crash},    {SIGXCPU, on_crash}, {SIGALRM, on_crash}, {SIGVTALRM, on_crash},
                {SIGPROF, on_crash},    {SIGUSR1, on_crash}, {SIGUSR2, on_crash}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sigaction old;
        /* keep signals ignored by nohup or a shell without job control, and a sanitizer's handlers */
        if (!sigaction(rows[i].sig, NULL, &old) && old.sa_handler != SIG_DFL) continue;
        sa.sa_handler = rows[i].fn;
        sigaction(rows[i].sig, &sa, NULL);
    }
    struct sigaction bus = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL); /* replaces a sanitizer's handler too: a shrunken file is not a bug */
}

void sig_defer(void (*cancel)(void *ctx), void *ctx) {
    cancel_ctx = NULL;
    cancel_fn = cancel;
    cancel_ctx = ctx;
    deferring = 1;
}
void sig_undefer(void) {
    deferring = 0;
    cancel_ctx = NULL;
}
bool sig_start_thread(pthread_t *t, void *(*fn)(void *), void *arg) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    sigset_t all, old;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed) errno = failed;
    return !failed;
}
void sig_at_exit(void (*fn)(void)) { at_exit = fn; }
void sig_clear_interrupt(void) { interrupted = 0; }
bool sig_interrupted(void) { return interrupted; }
int sig_terminated(void) { return terminated; }
bool sig_resized(void) { return atomic_exchange(&resized, 0); }
bool sig_continued(void) { return atomic_exchange(&continued, 0); }
int sig_fd(void) { return wake_pipe[0]; }
void sig_drain(void) {
    char waste[64];
    while (read(wake_pipe[0], waste, sizeof waste) > 0) {
    }
}
