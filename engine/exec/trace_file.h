#pragma once
/* A file of lines that a trace appends to while the engine runs. Engine thread only. */
#include "base/buf.h"
#include "base/error.h"
#include "base/file.h"

struct trace_file {
    struct buf text;  /* not written yet; its user appends whole lines */
    const char *what; /* "routing trace" */
    char *path;
    struct file_out out;
    bool is_open, has_failed; /* has_failed: nothing more is written */
};
/* A regular file is replaced on close (file_out); anything else is written to on close. A file that cannot be written
 * is one warning. ERR_MEMORY. */
int trace_file_open(struct trace_file *f, const char *path, const char *what, struct error *e);
void trace_file_close(struct trace_file *f);
void trace_file_fail(struct trace_file *f, const char *why); /* warns once and drops all later lines */
/* call after appending: writes text once there is enough of it */
void trace_file_flush(struct trace_file *f);
