#pragma once
/* Timelines of the emulated device: see gpu.h. */
#include "gpu/emu.h"

enum { EMU_PAST = 1024 };
struct emu_number {
    struct gpu_number base;
    _Atomic uint32_t words[2];
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct emu *writer; /* NULL: no stream has signalled yet */
    _Atomic int queued; /* unfinished signals and waits */
    struct {
        uint32_t value;
        double time;
        struct emu_told told;
    } past[EMU_PAST]; /* the latest signals of streams, with their times */
    uint64_t n_past;
};

/* The last two run on a stream's thread; work: the stream is not dropping commands. */
int emu_number_open(struct gpu *g, struct gpu_number **n, struct error *e);
void emu_number_close(struct gpu_number *n);
void emu_number_wake(struct gpu_number *n);
void emu_number_nap(struct gpu_number *n, uint32_t value);
int emu_number_write(struct gpu_number *n, uint32_t value, struct gpu_stream *s);
int emu_number_wait(struct gpu_number *n, uint32_t value, struct gpu_stream *s);
void emu_number_put(struct emu_stream *s, struct emu_number *n, uint32_t value, bool work);
void emu_number_pass(struct emu_stream *s, struct emu_number *n, uint32_t value);
