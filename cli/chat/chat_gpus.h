#pragma once
/* GPUs of a kind that no hearth has run on. While the first answer of a chat is made on the CPU a child compares their
 * results with the CPU's (--check-gpus, which stores the result); if they are right, the model is opened again, and
 * they answer from then on. */
#include "cli/chat/chat.h"

struct chat_gpus;
void chat_gpus_say(struct repl *r);  /* says at the beginning of a chat that GPUs are not used, and why */
void chat_gpus_poll(struct repl *r); /* begins or continues; opens the model again while no session answers */
void chat_gpus_end(struct repl *r);  /* ends a check that is running */
