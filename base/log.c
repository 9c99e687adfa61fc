#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log_fn sink;
static void *sink_ctx;
static enum log_level sink_max;

void log_set(log_fn fn, void *ctx, enum log_level max) {
    pthread_mutex_lock(&lock);
    sink = fn;
    sink_ctx = ctx;
    sink_max = max;
    pthread_mutex_unlock(&lock);
}

void log_say(enum log_level level, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&lock);
    if (sink && level <= sink_max) sink(sink_ctx, level, text);
    pthread_mutex_unlock(&lock);
}
