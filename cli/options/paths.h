#pragma once
/* Paths of hearth's files, after the XDG base directories. */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { PATHS_MAX = 4096 };
enum paths_kind { PATHS_CONFIG, PATHS_DATA, PATHS_STATE, PATHS_CACHE, PATHS_RUNTIME };
/* Copies the path of name (NULL: the directory) in hearth's directory of that kind. ERR_RUNTIME without HOME. */
int paths_get(enum paths_kind kind, const char *name, char *out, size_t cap);
/* The same, and creates the parent directories, mode 0700. */
int paths_make(enum paths_kind kind, const char *name, char *out, size_t cap, struct error *e);
/* Expands "~" and "~/..." as a shell does. ERR_USAGE if the path is too long. */
int paths_expand(const char *path, char *out, size_t cap);
