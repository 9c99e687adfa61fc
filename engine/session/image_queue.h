#pragma once
/* Runs the vision tower over the images of a session's prompt, one layer of one image per unit of the engine thread,
 * before the prefill's own units. Images whose tokens are all cached are left out. */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct engine;
struct engine_image;
struct image_span;
struct request;
struct session;

/* Runs one unit for the session in prefill, from token s->n_kv on. Returns PREFILL_MORE, 0 if all features are there,
 * or an error. Engine thread. */
int image_queue_advance(struct session *s, struct error *e);
/* Expected seconds of the tower for those of the turn's images that are not within the session's rows. The machine is
 * calibrated. */
double image_queue_expected(const struct session *s);
/* Steps of the tower that are done for the turn's images, all of them, weighted by the images' tokens, and when the
 * first began. Returns false if no image is being computed. */
bool image_queue_progress(const struct session *s, int *done, int *total, double *began);
/* Writes how long the tower took for the turn's images, beside what was expected; "" if none ran. */
void image_queue_explain(const struct session *s, char *out, size_t cap);
/* [s->n_images] rows of each image, NULL for one that is cached; NULL: all are. Valid until image_queue_drop(). */
const float *const *image_queue_features(const struct session *s);
void image_queue_drop(struct session *s); /* frees the features */

/* Checks the images of a request: that the model reads them, and that each token below 0 is one of theirs. ERR_USAGE.
 */
int image_queue_check(const struct engine *eng, const struct request *r, struct error *e);
/* Makes the images of a request those of the session. ERR_MEMORY: unchanged. */
int image_queue_keep(struct session *s, const struct request *r);
void image_queue_forget(struct session *s);
