#pragma once
/* Calls that other threads make on the engine thread, and what wakes that thread. */
#include "engine/session/engine_state.h"

struct engine_task {
    int (*fn)(void *arg);
    void *arg;
    int rc;
    bool done;
    struct engine_task *next;
};
/* Runs fn(arg) on the engine thread, which owns the CPU executor, between two units of its work. Waits and returns
 * fn's result. Callable from every other thread. */
int engine_run_on_thread(void *engine, int (*fn)(void *arg), void *arg);
/* engine thread: runs a task that was taken from the list */
void engine_run_task(struct engine *eng, struct engine_task *task);
void engine_wake(void *engine); /* async-signal-safe */
void engine_signal_fd(int fd);  /* makes an eventfd readable; async-signal-safe */
