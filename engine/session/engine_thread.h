#pragma once
/* The engine thread: chooses the next unit of work, by file: prefill_queue.c prefills, decode_batch.c runs decode
 * batches, drafts.c appends drafted tokens, session_turn.c samples tokens and ends turns. */
void *engine_thread(void *engine);
