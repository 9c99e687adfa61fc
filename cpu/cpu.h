#pragma once
/* The operations of base/ops.h on this machine's CPUs. */
#include "base/cpu_level.h"
#include "base/error.h"
#include "base/ops.h"

struct pool;

/* The best level of this CPU: CPUID and XCR0; AMX also needs (and requests) the kernel's permission. */
enum cpu_level cpu_level_best(void);
bool cpu_level_has(enum cpu_level l);
/* e.g. "avx512 (f bw vl vbmi bf16 vnni)"; for --version --verbose */
const char *cpu_describe(void);

/* Opens an executor on the pool, which is borrowed and must outlive it. One call at a time. Workspace grows as needed
 * and is kept. The CPU must have `level`. NULL: ERR_MEMORY. */
struct exec *cpu_exec_open(struct pool *pool, enum cpu_level level, struct error *e);
void cpu_exec_close(struct exec **x);
