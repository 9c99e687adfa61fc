#pragma once
/* Fault injection: every allocation and every file operation asks here first, so that a test can fail the Nth of them,
 * once or permanently. Thread-safe; costs one relaxed load when unused. */
#include <stdbool.h>

enum fault_kind { FAULT_ALLOC, FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_SYNC, FAULT_RENAME, FAULT_KINDS };

/* Fails the nth call of that kind, counted from now (1 = the next); 0 disables. forever: all later calls fail too.
 * kill: sends SIGKILL to the process instead, to simulate a power loss. */
void fault_set(enum fault_kind kind, long nth, bool forever, bool kill);
/* True when this call must fail. Callers set errno themselves (ENOMEM, EIO, ENOSPC). */
bool fault_hit(enum fault_kind kind);
/* Returns the number of calls of a kind since fault_set of that kind. */
long fault_count(enum fault_kind kind);
