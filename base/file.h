#pragma once
/* Files: mapped for reading, read completely, or replaced atomically. All I/O passes the fault hooks (fault.h). A path
 * that begins with "ember:" names a file embedded in the binary; every reading function accepts it. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct file_map {
    const uint8_t *data; /* read-only; 64-byte aligned at offset 0 */
    size_t size;
    bool embedded;
};
/* Maps a regular file read-only, one of 32 MB or more at a multiple of MEM_HUGE_PAGE. ERR_RUNTIME, ERR_MEMORY (no
 * address space): name the path and errno. An empty file maps to size 0. */
int file_map(struct file_map *m, const char *path, struct error *e);
void file_unmap(struct file_map *m); /* a zeroed map is valid */
/* The path of the map that an address belongs to, or NULL. Async-signal-safe: for the SIGBUS of a file that shrank. */
const char *file_map_owner(const void *address);

/* Advises the kernel to load the uncached part of a map in 2 MB pages (ext4, XFS, btrfs on newer kernels), which the
 * CPU reads faster. Use it only for maps that fit in memory. */
void file_map_advise_huge(const struct file_map *m);

/* Starts reading a range of a map into the page cache and returns without waiting. */
void file_map_prefetch(const void *begin, size_t size);
/* Drops a range of a map from this process and the page cache, e.g. after copying it. A later read comes from disk. */
void file_map_drop(const void *begin, size_t size);

/* Whether the system tells which pages of the map at an address are in memory: not of files of another user that this
 * one may only read. */
bool file_map_tells_cached(const void *address);
/* The bytes of a range of a map that are in memory; 0 if the system does not tell. p: aligned to pages. */
size_t file_map_cached(const void *p, size_t size);
/* Whether all of a range of a map is in memory. Of files whose cached pages the system does not tell: whether this
 * process has mapped all of it, which it does by reading; false if the system does not tell that either. p: aligned to
 * pages. */
bool file_map_is_cached(const void *p, size_t size);
/* Reads and maps a range in whole pages. Returns 0, or -errno; pages that were not read are read on the next access. */
int file_map_touch(const void *p, size_t size);
/* As file_map_touch, after dropping the pages from this process and the page cache: after file_map_advise_huge it reads
 * 2 MB pages. Concurrent readers of the range wait. Pages that another process maps stay what they are. */
int file_map_reload(const void *p, size_t size);
/* The bytes of a range of this process's memory that it has touched in 2 MB pages; -1 if the kernel does not tell
 * (before Linux 6.7). */
ptrdiff_t file_map_large(const void *p, size_t size);

/* Replaces part of a map by memory, in whole pages; concurrent readers see either one. file_map_copy fills `to` with
 * the file's bytes from `begin` (in the map) and zeros past its end, and drops them from the page cache.
 * file_map_replace moves the pages of `with` there and frees their own addresses. file_unmap releases them.
 * ERR_RUNTIME. */
int file_map_copy(void *to, const void *begin, size_t size, struct error *e);
int file_map_replace(const void *begin, void *with, size_t size, struct error *e);

/* Reads a file of at most max bytes; *data is NUL-terminated (not counted in *size) and freed with mem_free. */
int file_read(const char *path, size_t max, char **data, size_t *size, struct error *e);
/* An output file. A regular or new file is replaced on success: temporary file in the same directory, fsync, rename,
 * fsync of the directory. On error the old file stays and the temporary file is removed. A symbolic link is followed:
 * its target is replaced, and the link stays. Anything else (FIFO, device, dangling link) is written in place. */
struct file_out {
    int fd;           /* for file_write_all; -1: closed */
    char *path, *tmp; /* owned; tmp NULL: written in place */
};
/* mode: of a new file, before the umask; a replaced file keeps those of its bits that mode allows. ERR_RUNTIME,
 * ERR_MEMORY. */
int file_out_open(struct file_out *o, const char *path, unsigned mode, struct error *e);
/* Commits the output, or with keep false discards it. Closes *o; a closed *o is valid. */
int file_out_close(struct file_out *o, bool keep, struct error *e);
/* Removes the temporary files of open outputs. Async-signal-safe: for a fatal signal. */
void file_out_abandon(void);
/* Writes a complete file, mode 0600. */
int file_write(const char *path, const void *data, size_t size, struct error *e);
/* Removes a file, also for the time after a power loss. */
int file_remove(const char *path, struct error *e);
/* Makes names in a directory durable. Returns 0, also on file systems that cannot, or a negative errno. */
int file_sync_dir(int dir);
/* Whether flock() failed with this errno because the file system has no locks, as Lustre, 9P or NFS may not. */
bool file_lacks_locks(int error);
/* Writes all bytes to a descriptor; handles EINTR and short writes. Returns 0 or -errno. */
int file_write_all(int fd, const void *data, size_t size);
bool file_exists(const char *path);                 /* a readable regular file, or an embedded one */
bool file_is_dir(const char *path);                 /* also true for "ember:" */
int file_mkdirs(const char *path, struct error *e); /* like mkdir -p, mode 0700 */
/* The path of a checkpoint's config: config.json, or, if there is none, Mistral's params.json beside tekken.json. */
int file_config(char *buf, size_t cap, const char *dir, struct error *e);
/* dir + "/" + name into buf; ERR_USAGE when it does not fit. */
int file_join(char *buf, size_t cap, const char *dir, const char *name, struct error *e);

/* Detects placeholders for large files: ERR_MODEL for a Git LFS pointer or a web page. */
int file_check_placeholder(const uint8_t *data, size_t size, const char *what, struct error *e);

/* The files of the embedded checkpoint; set once at start by main. Table ends with a NULL name. */
struct file_embedded {
    const char *name;
    const uint8_t *begin, *end;
};
void file_embed(const struct file_embedded *table);
/* Calls fn for each entry of a directory (or of the embedded table), in any order, until it returns non-zero. */
int file_list(const char *dir, int (*fn)(void *ctx, const char *name), void *ctx, struct error *e);
