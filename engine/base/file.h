#pragma once
/* Files: mapped for reading, read whole, or replaced at once. All I/O passes the fault hooks (fault.h).
 * A path that begins with "ember:" names a file embedded in the binary; everything that reads can read those. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

struct file_map {
    const uint8_t *data; /* read-only; 64-byte aligned at offset 0 */
    size_t size;
    bool embedded;
};
/* Maps a regular file read-only. Errors: ERR_RUNTIME naming the path and errno. An empty file maps to size 0. */
int file_map(struct file_map *m, const char *path, struct error *e);
void file_unmap(struct file_map *m); /* fine on a zeroed one */
/* The path of the map that an address belongs to, or NULL. Async-signal-safe: for the SIGBUS of a file that shrank. */
const char *file_map_owner(const void *address);

/* For a map that fits in memory: what is not in the page cache yet comes in pages of 2 MB where the system can do that (ext4, XFS, btrfs on a
 * newer kernel), which are read faster from memory. No more than advice. */
void file_map_large(const struct file_map *m);

/* Begins to read what lies between two addresses of a map and returns before it is there. */
void file_map_ahead(const void *begin, size_t size);
/* The memory of what lies between two addresses of a map may go: it was copied elsewhere. Reading it again costs a read
 * from the disk, nothing else. */
void file_map_drop(const void *begin, size_t size);

/* Drops what lies between two addresses of a map, whole pages, and reads it from the disk again: after file_map_large in pages of 2 MB.
 * Who reads there meanwhile waits. 0, or -errno: what is not there yet comes when it is touched. */
int file_map_again(const void *begin, size_t size);
/* Bytes of mapped files that this process has touched, and how many of them lie in pages of 2 MB: takes 7 ms a GB in small pages.
 * False: the system does not tell. */
bool file_map_pages(size_t *touched, size_t *large);

/* Memory in place of a part of a map, both whole pages of the system: who reads there meanwhile finds the one or the other. Copy fills `to`
 * with the file's bytes from `begin` (of the map) on, zeros behind its end, and has the system forget what it kept of them; replace
 * moves the pages of `with` there, whose own addresses are free then. file_unmap takes them along. ERR_RUNTIME. */
int file_map_copy(void *to, const void *begin, size_t size, struct error *e);
int file_map_replace(const void *begin, void *with, size_t size, struct error *e);

/* Reads a file of at most max bytes; *data is NUL-terminated (not counted in *size) and freed with mem_free. */
int file_read(const char *path, size_t max, char **data, size_t *size, struct error *e);
/* An output, by one rule for all that hearth writes. A regular file, or nothing there yet, is replaced when the new one is
 * whole: temporary beside it, fsync, rename, fsync of the directory; on error the old file stands and the temporary is
 * gone. Anything else (a FIFO, a device, a symbolic link) is written to where it is. */
struct file_out {
    int fd;           /* to be written with file_write_all; -1: closed */
    char *path, *tmp; /* owned; tmp NULL: written where it is */
};
/* mode: of a new file, before the umask; one that is replaced keeps of its own what mode allows. ERR_RUNTIME, ERR_MEMORY. */
int file_out_open(struct file_out *o, const char *path, unsigned mode, struct error *e);
/* keep false: as if nothing had been written. Fine on a closed one. *o is closed afterwards. */
int file_out_close(struct file_out *o, bool keep, struct error *e);
/* Removes the temporaries of open outputs. Async-signal-safe: for a signal that ends the process. */
void file_out_abandon(void);
/* A whole output at once, mode 0600. */
int file_write(const char *path, const void *data, size_t size, struct error *e);
/* Writes to a descriptor until all is out; handles EINTR and short writes. Returns 0 or -errno. */
int file_write_all(int fd, const void *data, size_t size);
bool file_exists(const char *path);                 /* a readable regular file, or an embedded one */
bool file_is_dir(const char *path);                 /* also true for "ember:" */
int file_mkdirs(const char *path, struct error *e); /* like mkdir -p, mode 0700 */
/* dir + "/" + name into buf; ERR_USAGE when it does not fit. */
int file_join(char *buf, size_t cap, const char *dir, const char *name, struct error *e);

/* What came instead of a large file: a Git LFS pointer or a web page is an ERR_MODEL that says so. */
int file_looks_wrong(const uint8_t *data, size_t size, const char *what, struct error *e);

/* The files of the embedded checkpoint; set once at start by main. Table ends with a NULL name. */
struct file_embedded {
    const char *name;
    const uint8_t *begin, *end;
};
void file_embed(const struct file_embedded *table);
/* Calls fn for each entry of a directory (or of the embedded table), in no order, until it returns non-zero. */
int file_list(const char *dir, int (*fn)(void *ctx, const char *name), void *ctx, struct error *e);
