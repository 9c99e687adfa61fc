#pragma once
/* Lets the user choose from a list before the chat opens. */
#include "cli/app.h"

/* Lists the newest saved conversations and reads a number or name from the terminal. ERR_USAGE: the list is empty, or
 * the user chose nothing. */
int picker_choose_chat(char *name, size_t cap, struct error *e);
