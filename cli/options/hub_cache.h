#pragma once
/* The cache that Hugging Face's programs share: HUB/models--ORG--NAME with blobs, snapshots/COMMIT and refs/main.
 * A snapshot holds a checkpoint, ORG/NAME, or GGUF files, ORG/NAME:QUANT, also in folders. refs/main names the snapshot
 * that counts; what only others have counts too. */
#include "cli/options/model_list.h"

/* Writes the cache's directory by HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME, whether or not it exists.
 * ERR_RUNTIME: none of them is an absolute path. */
int hub_cache_dir(char *out, size_t cap);
/* Writes HUB/models--ORG--NAME. ERR_USAGE: the path is too long. */
int hub_cache_repo(char *out, size_t cap, const char *hub, const char *repo, struct error *e);

/* Adds the models in a repository's folder, HUB/models--ORG--NAME, sorted by name. Several snapshots of which refs/main
 * names none are named by their paths. A folder that is none adds nothing. */
int hub_cache_list(struct model_list *l, const char *folder, struct error *e);
/* Resolves ORG/NAME or ORG/NAME:QUANT. ERR_CANCELLED: not such a name, or not in the cache; ERR_MODEL: not this quant;
 * ERR_USAGE: several, which are named. */
int hub_cache_find(const char *name, char *out, size_t cap, struct error *e);
/* Writes the name of what hub_cache_find() or a search resolved to: ORG/NAME or ORG/NAME:QUANT. false: the path is not
 * within a snapshot. */
bool hub_cache_name(const char *path, char *out, size_t cap);
