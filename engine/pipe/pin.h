#pragma once
/* How weights in host memory reach the devices, chosen when these are opened. Pinned where they are mapped, if the driver registers
 * read-only mappings. Else read once into memory of our own that takes the mapping's place, in 2 MB pages, each on the memory
 * node whose threads compute most of it (store/span.h): who reads a weight finds it at the same address all the while, and what the system kept of the files
 * goes as it is read. Else, and until they are pinned, through pinned buffers that threads fill (stage.h). Nothing is pinned that does not fit in free memory.
 */
#include "engine/store/weights.h"
#include "gpu/gpu.h"

enum pin_path { PIN_BUILT_IN, PIN_MAPPED, PIN_COPIED, PIN_STAGED }; /* built in: part of the program, a few MB */
struct pin_choice {
    enum pin_path path;
    size_t bytes;  /* of the files */
    char why[120]; /* one clause */
};
/* Tries what the driver takes with 2 MB, and nothing is left of that. */
struct pin_choice pin_choose(struct gpu *g, const struct weights *w);
const char *pin_name(enum pin_path p); /* "built in", "mapped", "copied", "staged" */
/* Bytes/s that a device gets, of the link's: what the threads of a stage copy is the limit elsewhere. */
double pin_rate(enum pin_path p, double link);
int pin_stage_threads(void); /* of a stage; more would take the processor from others */

struct pin;
/* Begins to pin, on threads of its own; g and w must outlive it. ERR_MEMORY. */
int pin_open(struct pin **p, struct gpu *g, const struct weights *w, struct error *e);
void pin_close(struct pin **p); /* before weights_close */
const struct pin_choice *pin_chosen(const struct pin *p);
bool pin_has(const struct pin *p, const void *at, size_t size); /* all of it, by now; any thread */
bool pin_done(const struct pin *p);                             /* nothing more will be pinned; any thread */
