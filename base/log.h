#pragma once
/* Log messages other than errors. Nothing below cli/ prints: cli or a test sets the sink. Thread-safe. */
enum log_level { LOG_WARN, LOG_INFO, LOG_DEBUG };
typedef void (*log_fn)(void *ctx, enum log_level level, const char *text);
void log_set(log_fn fn, void *ctx, enum log_level max);
void log_say(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
