#pragma once
/* Operations that touch each row once, as tasks of several rows. Small ones run on the calling thread, because waking
 * the pool costs more. The number of rows per task depends on the shape only. */
#include "cpu/cpu_exec.h"

static inline int row_job_per_task(int cols) {
    return cols >= CPU_EXEC_GRAIN ? 1 : CPU_EXEC_GRAIN / (cols > 0 ? cols : 1);
}
static inline int row_job_tasks(int rows, int per) { return rows <= 0 ? 0 : (rows + per - 1) / per; }
static inline int row_job_end(int task, int per, int rows) { return rows - task * per < per ? rows : (task + 1) * per; }

struct row_job {
    struct cpu_exec *x;
    const void *op;
    int per, rows;
};
static inline int row_job_run(struct exec *base, const void *op, int rows, int cols, exec_fn fn) {
    struct row_job j = {(struct cpu_exec *)base, op, row_job_per_task(cols), rows};
    return cpu_exec_for_each(j.x, row_job_tasks(rows, j.per), fn, &j);
}
