#pragma once
/* Error handling: functions return 0 or one of these negative codes and fill the caller's struct error. The text says
 * what was wrong, in which file, tensor and number, and what to do next. Nothing below cli/ prints it. */

enum {
    ERR_RUNTIME = -1,   /* exit 1 */
    ERR_USAGE = -2,     /* exit 2 */
    ERR_MODEL = -3,     /* exit 3: a damaged or unknown checkpoint */
    ERR_CONTEXT = -4,   /* exit 4: prompt does not fit the context */
    ERR_MEMORY = -5,    /* exit 5 */
    ERR_CANCELLED = -6, /* stopped by the user; exit 130 if it reaches main */
};

struct error {
    int code; /* 0 until set */
    char text[512];
};

/* Fills *e (may be NULL) and returns code, for use as `return error_set(e, ERR_MODEL, "...")`. The text is truncated at
 * 511 bytes, at a UTF-8 boundary; control bytes in it (names from a file) become '?'. */
int error_set(struct error *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Prepends "prefix: " to the text; returns e->code. */
int error_prefix(struct error *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Returns a failed call's code from the calling function. */
#define TRY(call) \
    do { \
        int rc_ = (call); \
        if (rc_) return rc_; \
    } while (0)

/* Discards the result of a call that the C library marks as to be used, where a failure needs no handling. Say why
 * beside the call. */
static inline void error_ignore(long long result) { (void)result; }

/* Returns the cause of an errno of a call that opens a descriptor or starts a thread, and for limits how to raise
 * them. */
const char *error_reason(int number);

/* The process exit code for a negative error code. */
int error_exit_code(int code);
