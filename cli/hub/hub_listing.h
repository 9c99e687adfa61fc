#pragma once
/* What a repository has: its commit and its files, as the hub lists them. Untrusted: names and sizes are checked. */
#include "base/mem.h"
#include "cli/hub/digest.h"
#include "cli/hub/hub_client.h"

struct hub_file {
    const char *path; /* relative to the repository; never leads out of it */
    uint64_t size;
    char oid[DIGEST_HEX]; /* SHA-256 of a large file, otherwise git's name of the contents; names the blob */
    bool is_large;        /* stored by LFS or Xet */
};
struct hub_listing {
    char repo[200], commit[41];
    struct hub_file *files; /* [n] the files that hearth may read, in the hub's order */
    size_t n, cap;
    struct arena arena;
};
/* Lists the branch main. ERR_RUNTIME says why the hub gave no valid list. Free also after an error. */
int hub_listing_fetch(struct hub *h, const char *repo, struct hub_listing *l, struct error *e);
void hub_listing_free(struct hub_listing *l);
const struct hub_file *hub_listing_find(const struct hub_listing *l, const char *path); /* NULL: not listed */
