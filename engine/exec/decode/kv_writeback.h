#pragma once
/* Downloads the KV rows and states that a batch adds, and stores them in the sessions' caches. After a layer's
 * attention the device stages its rows (rows that cover several tokens at the end of the batch); one copy per batch
 * brings all layers to host memory; from there they go to the caches. */
#include "engine/exec/decode/decode_state.h"

/* ERR_MEMORY; close it in any case */
int kv_writeback_layout_open(struct kv_row_layout *p, const struct config *c, enum dtype kv, struct error *e);
void kv_writeback_layout_close(struct kv_row_layout *p);
size_t kv_writeback_rows_bytes(const struct kv_row_layout *p, int n);
int kv_writeback_stage_rows(struct decode_device *d, int layer, const struct decode_micro_batch *m, int total);
int kv_writeback_download_rows(struct decode_device *d, int total);
void kv_writeback_store_rows(struct decode *s, const struct decode_micro_batch *m, const struct decode_span *caller,
                             int total);
/* The states that the spans of a batch produce, downloaded (enqueued), then stored into the sessions' caches. i counts
 * spans over micro-batches. A pinned bounce buffer, because a download to unpinned memory blocks the caller. */
int kv_writeback_states_open(struct decode *s, struct error *e);
int kv_writeback_download_states(struct decode_device *d, int i, const struct span *dev, const struct span *host);
void kv_writeback_store_states(struct decode *s);
/* Download and storing for a prefill: one layer's rows [pos, pos + n) of one session, to `host`; from there all layers
 * to its cache. */
int kv_writeback_download_prefill(struct decode *s, const struct device_kv *copy, struct gpu_stream *stream, int layer,
                                  int pos, int n, char *host);
void kv_writeback_store_prefill(struct decode *s, const struct kv *kv, const struct kv_state_step *state_step, int pos,
                                int n, char *host);
/* size of `host` for n rows: rows and two states of each layer */
size_t kv_writeback_prefill_bytes(const struct decode *s, int n);
