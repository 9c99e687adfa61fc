#pragma once
/* Pins host weights for uploads; the path is chosen at open. With one NUMA node, mapped files are pinned in place if
 * the driver registers read-only mappings. Else the weights are read once into our own pages, which replace the mapping
 * at the same addresses, each on the NUMA node whose threads compute most of it (numa_ranges.h); the files' page cache
 * is released as it is read, so host memory has them once. Matrices that were repacked when the checkpoint was opened
 * are pinned where they are, without the files that they replace. Else, and until pinning ends, uploads go through
 * staging buffers (stage.h). Tables of n-grams, which no device reads, stay mapped and unpinned. Nothing is pinned that
 * does not fit in free memory. A registration stalls all calls of the driver for 0.1 to 0.3 s a GiB, so none begins
 * while sessions decode; pages are copied and placed nevertheless. */
#include "cpu/numa.h"
#include "engine/weights/weights.h"
#include "gpu/gpu.h"

enum pin_path { PIN_BUILT_IN, PIN_MAPPED, PIN_COPIED, PIN_STAGED }; /* built in: part of the executable, a few MB */
struct pin_choice {
    enum pin_path path;
    bool by_node;  /* each NUMA node gets the rows that its CPUs compute, in our own pages; with PIN_STAGED, too */
    size_t bytes;  /* to be pinned */
    char why[160]; /* one clause */
};
/* Chooses by registering 2 MB for a test, and releases them. */
/* nodes: of the CPU executor; n_nodes 1 without NUMA */
struct pin_choice pin_choose(struct gpu *g, const struct weights *w, const struct numa *nodes);
/* "built in", "mapped", "copied", "staged" */
const char *pin_name(enum pin_path p);
/* Returns the upload rate in bytes/s on a link of rate `link`; staging is limited by its threads. */
double pin_rate(enum pin_path p, double link);
int pin_stage_threads(void);      /* per stage; more would starve the CPU executor */
int pin_idle_stage_threads(void); /* per stage, while nothing else computes */

struct pin;
/* Chooses the path; g and w must outlive *p. held: as after pin_hold(). ERR_MEMORY. */
int pin_open(struct pin **p, struct gpu *g, const struct weights *w, const struct numa *nodes, bool held,
             struct error *e);
void pin_start(struct pin *p);  /* starts the pinning threads, once. One thread. p may be NULL */
void pin_close(struct pin **p); /* before weights_close */
const struct pin_choice *pin_get_choice(const struct pin *p);
/* whether all that devices read of the range is pinned now; any thread */
bool pin_covers(const struct pin *p, const void *at, size_t size);
/* of weights that are in our own pages now, which mem_available() does not count; any thread */
size_t pin_own_bytes(const struct pin *p);
/* no thread pins: not started, or no more memory will be pinned; any thread */
bool pin_is_done(const struct pin *p);
/* While held, memory is registered only after it has waited for PIN_PATIENCE_S seconds, so that pinning ends even if
 * decoding does not. Any thread; p may be NULL. */
enum { PIN_PATIENCE_S = 10 };
void pin_hold(struct pin *p, bool held);
/* Bytes of each card's memory that its driver takes for page tables of what will be pinned: 8 a page of 4 KiB. */
size_t pin_page_table_bytes(const struct pin *p);
