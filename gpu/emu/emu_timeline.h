#pragma once
/* Timelines of the emulated device: see gpu.h. */
#include "gpu/emu/emu.h"

enum { EMU_TIMELINE_SIGNALS = 1024 };
struct emu_timeline {
    struct gpu_timeline base;
    _Atomic uint32_t words[2];
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct emu *_Atomic writer; /* NULL: no stream has signalled yet */
    _Atomic int n_queued;       /* unfinished signals and waits */
    struct emu_stream *waiters; /* streams without a thread whose next command waits for a value */
    struct {
        uint32_t value;
        double time;
        const struct emu *writer;         /* device of the signalling stream: several may signal a timeline */
        struct emu_link_usage link_usage; /* virtual time: as known to the signalling stream */
    } signals[EMU_TIMELINE_SIGNALS];      /* the latest signals of streams, with their times */
    uint64_t n_signals;
};

/* The backend's calls (backend.h); the last two run an enqueued command, on the stream's thread. work: the stream is
 * not dropping commands. */
int emu_timeline_open(struct gpu *g, struct gpu_timeline **n, struct error *e);
void emu_timeline_close(struct gpu_timeline *n);
void emu_timeline_wake(struct gpu_timeline *n);
void emu_timeline_sleep(struct gpu_timeline *n, uint32_t value);
int emu_timeline_signal(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
int emu_timeline_wait(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
void emu_timeline_run_signal(struct emu_stream *s, struct emu_timeline *n, uint32_t value, bool work);
void emu_timeline_run_wait(struct emu_stream *s, struct emu_timeline *n, uint32_t value);
/* no signal can follow: a device has failed */
bool emu_timeline_is_lost(struct emu_timeline *n, const struct emu *writer);
