#pragma once
/* Where a machine model (cost.h) comes from: measured here and kept, read from a file that describes another machine, or one of
 * the presets. The only part of it with a clock and files.
 *
 * The text form is the same for the cache and for machine files: `key = value` lines, # begins a comment. calibrate_keys lists the
 * keys. A quantity is a number (with K, M, G, T: powers of 1000) or a curve over rows, `1:0.9T 16:12T 128:20T`. */
#include <stdatomic.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/sched/cost.h"

struct exec;
struct gpu;

struct calibrate_options {
    struct exec *cpu;         /* the processor's operations, idle meanwhile; called on this thread */
    int threads;              /* of it, for the fingerprint */
    struct gpu *const *gpu;   /* [n_gpus], idle */
    int n_gpus;
    double seconds;           /* to spend on the processor and on each device; 0: 1.5 */
    size_t bytes;             /* of weights to read, several times the last-level cache; 0: 512 MiB or an eighth of what is free */
    const char *dir;          /* cache directory, made by the caller; NULL: neither looked up nor kept */
    bool again;               /* measure even where the cache has it */
    const _Atomic int *cancel;
};
/* Fills *out from the cache where the fingerprint (processor, level, threads, devices, driver, this version) fits, else by
 * measuring, and keeps it: DIR/machine, replaced atomically. A file that is damaged or of another machine is passed over with a
 * note in the log. Keeping it may fail (logged); measuring gives ERR_MEMORY, ERR_CANCELLED or ERR_RUNTIME. Devices in virtual
 * time are not run: they get the rates that they were given. */
int calibrate(struct cost_machine *out, const struct calibrate_options *o, struct error *e);

/* A preset by its name, else a machine file. ERR_USAGE names file, line and key. */
int calibrate_read(struct cost_machine *out, const char *name_or_path, struct error *e);
/* Text of a machine, and back; `what` names it in errors. fingerprint: NULL, or where the file's own goes (64 bytes). */
int calibrate_write(const struct cost_machine *m, const char *fingerprint, struct buf *out);
int calibrate_parse(struct cost_machine *out, const char *text, size_t n, const char *what, char *fingerprint, struct error *e);
