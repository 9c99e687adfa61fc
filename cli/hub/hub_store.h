#pragma once
/* A repository's folder in the Hugging Face cache, for writing: blobs by checksum, snapshots/COMMIT/PATH as links to
 * them, refs/main, and locks where Hugging Face's programs have theirs. */
#include "cli/hub/hub_listing.h"
#include "cli/options/paths.h"

struct hub_store {
    char dir[PATHS_MAX], locks[PATHS_MAX]; /* HUB/models--ORG--NAME, HUB/.locks/models--ORG--NAME */
    char repo[200];
    int lock; /* -1: not held */
};
/* Makes the folders and takes the lock of the repository. ERR_RUNTIME: another pull holds it, or the folders cannot be
 * made. Close also after an error. */
int hub_store_open(struct hub_store *s, const char *repo, struct error *e);
void hub_store_close(struct hub_store *s);
/* Whether the file's blob is complete. */
bool hub_store_has(const struct hub_store *s, const struct hub_file *f);
/* Bytes of the file that are there, also of an interrupted download. */
uint64_t hub_store_bytes(const struct hub_store *s, const struct hub_file *f);
/* ERR_RUNTIME: the disk has less room than `need` bytes. */
int hub_store_room(const struct hub_store *s, uint64_t need, struct error *e);
/* Links snapshots/COMMIT/PATH to the blob. */
int hub_store_link(const struct hub_store *s, const char *commit, const struct hub_file *f, struct error *e);
/* Makes refs/main name the commit. */
int hub_store_set_main(const struct hub_store *s, const char *commit, struct error *e);

/* hub_download.c: a file's blob as the sink of a request */
struct hub_download {
    const struct hub_store *store;
    const struct hub_file *file;
    int fd, lock; /* -1: closed */
    uint64_t have;
    void *digest;
    bool is_resumed; /* some of the bytes are of an earlier run */
    bool is_complete;
};
extern const struct hub_sink hub_download_sink;  /* ctx: struct hub_download, whose store and file are set */
void hub_download_close(struct hub_download *d); /* a zeroed one with fd and lock -1 is valid */
