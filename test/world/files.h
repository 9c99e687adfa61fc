#pragma once
/* Files of the world, past the program. */
#include <stdbool.h>

#include "cli/saved/store.h"

/* Flips a bit of a saved chat, or of the nth KV file. False: there is no such file. */
bool files_rot_chat(int user);
bool files_rot_kv(int nth);

/* Appends the keys that only this user's saved chat has. */
void files_own_keys(int user, struct disk_keys *out);
void files_forbid(const uint64_t *keys, size_t n); /* their chat is deleted: no process may write them from now on */
void files_permit(const uint64_t *keys, size_t n); /* they are being computed again */
void files_check(void);                            /* no forbidden one is there */
