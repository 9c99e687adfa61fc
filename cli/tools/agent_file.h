#pragma once
/* The files below one directory, for tools that a model calls. No path, symbolic link or change of the tree meanwhile
 * leads out of the directory: the kernel resolves paths beneath it (openat2), or where it lacks that, links are not
 * followed. Threads may share a directory. */
#include <stdbool.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/options/paths.h"

struct agent_dir {
    int fd;
    char path[PATHS_MAX]; /* absolute, without links */
};
/* ERR_RUNTIME: no directory, or it cannot be opened. */
int agent_file_open_dir(struct agent_dir *d, const char *path, struct error *e);
void agent_file_close_dir(struct agent_dir *d);

/* Makes a path relative to the directory, without "." and "..": "" is the directory itself. An absolute path must begin
 * with the directory's. out has PATHS_MAX bytes. ERR_USAGE: it leads out of the directory, or is none. */
int agent_file_path(const struct agent_dir *d, const char *path, size_t n, char *out, struct error *e);

enum agent_kind { AGENT_KIND_FILE = S_IFREG, AGENT_KIND_DIRECTORY = S_IFDIR };
/* Opens a regular file, or a directory, for reading; a FIFO or a device is never opened. path: of agent_file_path. s:
 * its state. ERR_USAGE says why it cannot be opened. */
int agent_file_open(const struct agent_dir *d, const char *path, enum agent_kind kind, int *fd, struct stat *s,
                    struct error *e);
/* Opens an entry of an open directory, if it is of that kind and no link. False otherwise. */
bool agent_file_open_entry(int dir, const char *name, enum agent_kind kind, int *fd, struct stat *s);
/* Reads what is left of a file of at most max bytes. ERR_USAGE: it is longer; ERR_RUNTIME; ERR_MEMORY. *data is freed
 * with mem_free. */
int agent_file_read(int fd, size_t max, char **data, size_t *n, struct error *e);
/* Returns whether path can be replaced: ERR_USAGE if it is a link or no regular file. *exists: there is such a file. */
int agent_file_check_target(const struct agent_dir *d, const char *path, bool *exists, struct error *e);
/* Replaces a file, or makes it and the directories that it needs: a temporary file, sync, rename. A file that has other
 * names (hard links) is replaced under this name only. ERR_RUNTIME, ERR_USAGE: the old file stays. */
int agent_file_replace(const struct agent_dir *d, const char *path, const char *data, size_t n, struct error *e);
/* Says what a file is that is neither a regular file nor a directory. */
const char *agent_file_kind(mode_t mode);
