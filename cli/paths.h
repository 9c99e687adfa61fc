#pragma once
/* Where hearth keeps its files, after the XDG base directories. */
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { PATHS_MAX = 4096 };
enum paths_kind { PATHS_CONFIG, PATHS_DATA, PATHS_STATE, PATHS_CACHE, PATHS_RUNTIME };
/* Path of name (NULL: the directory) in hearth's directory of that kind. ERR_RUNTIME when there is no HOME. */
int paths_get(enum paths_kind kind, const char *name, char *out, size_t cap);
/* The same, with the directories above it made, mode 0700. */
int paths_make(enum paths_kind kind, const char *name, char *out, size_t cap, struct error *e);
/* "~" and "~/..." stand for HOME and what is in it, as a shell has it. ERR_USAGE where the path is too long. */
int paths_expand(const char *path, char *out, size_t cap);
