#include "engine/session/engine_tasks.h"

#include <errno.h>
#include <unistd.h>

void engine_signal_fd(int fd) {
    uint64_t one = 1;
    int saved = errno;
    if (write(fd, &one, sizeof one) < 0) {
    } /* counter full: already readable */
    errno = saved;
}
void engine_wake(void *engine) { engine_signal_fd(((struct engine *)engine)->wake_fd); }

int engine_run_on_thread(void *engine, int (*fn)(void *arg), void *arg) {
    struct engine *e = engine;
    struct engine_task task = {.fn = fn, .arg = arg}, **end = &e->tasks;
    pthread_mutex_lock(&e->lock);
    while (*end) end = &(*end)->next;
    *end = &task;
    engine_wake(e);
    while (!task.done) pthread_cond_wait(&e->ended_cond, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return task.rc;
}

void engine_run_task(struct engine *e, struct engine_task *task) {
    task->rc = task->fn(task->arg);
    pthread_mutex_lock(&e->lock);
    task->done = true;
    pthread_cond_broadcast(&e->ended_cond);
    pthread_mutex_unlock(&e->lock);
}
