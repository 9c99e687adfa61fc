#pragma once
/* The disk under hearth's files, in place of the C library's calls (--wrap): what a power loss may lose, writes that
 * are short, and the point at which the process dies. Data count as safe after fsync of their file, a rename after
 * fsync of its directory. Failing calls are base/fault.h's. */
#include <stdbool.h>
#include <stdint.h>

void disk_open(const char *dir); /* the directory that holds all files of the world, and ours beside them */
/* Ends the process after that many points and file operations; loses_power: unsynced data and names are lost, in part.
 * 0: it lives on. */
void disk_kill_after(uint32_t points, bool loses_power);
void disk_count_point(void); /* one of these; fibers_on_point */
void disk_forget(void);      /* all is safe now: as after a long time */
enum { DISK_KILLED = 90 };   /* exit status of the process that was killed */
