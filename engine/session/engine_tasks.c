#include "engine/session/engine_tasks.h"

#include <errno.h>
#include <unistd.h>

#include "base/error.h"

void engine_signal_fd(int fd) {
    uint64_t one = 1;
    int saved = errno;
    error_ignore(write(fd, &one, sizeof one)); /* counter full: already readable */
    errno = saved;
}
void engine_wake(void *engine) { engine_signal_fd(((struct engine *)engine)->wake_fd); }

int engine_run_on_thread(void *engine, int (*fn)(void *arg), void *arg) {
    struct engine *eng = engine;
    struct engine_task task = {.fn = fn, .arg = arg}, **end = &eng->tasks;
    pthread_mutex_lock(&eng->lock);
    while (*end) end = &(*end)->next;
    *end = &task;
    engine_wake(eng);
    while (!task.done) pthread_cond_wait(&eng->ended_cond, &eng->lock);
    pthread_mutex_unlock(&eng->lock);
    return task.rc;
}

void engine_run_task(struct engine *eng, struct engine_task *task) {
    task->rc = task->fn(task->arg);
    pthread_mutex_lock(&eng->lock);
    task->done = true;
    pthread_cond_broadcast(&eng->ended_cond);
    pthread_mutex_unlock(&eng->lock);
}
