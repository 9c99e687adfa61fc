#include "engine/exec/image_rows.h"

#include <string.h>

#include "engine/layer/rows.h"

void image_rows_ids(const struct image_rows *r, const int32_t *ids, int n, int32_t *out) {
    for (int i = 0; i < n; i++) out[i] = ids[i] < 0 ? r->token : ids[i];
}

bool image_rows_have_places(const struct image_rows *r, const struct config *c) {
    return r->features && c->rope.section[0];
}

void image_rows_turn(const struct image_rows *r, const struct config *c, int pos, int n, int32_t *turns,
                     int32_t *place) {
    const bool has_places = image_rows_have_places(r, c);
    for (int i = 0; i < n; i++) {
        turns[i] = pos + i + r->turn_shift;
        if (has_places) image_place(r->spans, r->n, pos + i, &place[3 * i]);
    }
}

/* Consecutive rows of one image among some tokens. */
struct run {
    int at, n;         /* the first of those tokens, and their number */
    const float *rows; /* of the first one, [n, floats] */
};
/* Finds the rows of image k among the n tokens from pos on. Returns false if there are none. */
static bool find_run(const struct image_rows *r, int k, int pos, int n, struct run *out) {
    const struct image_span *s = &r->spans[k];
    const int begin = s->at > pos ? s->at : pos, past = s->at + image_tokens(s->image),
              end = past < pos + n ? past : pos + n;
    if (!r->features || begin >= end) return false;
    *out = (struct run){begin - pos, end - begin, r->features[k] + (size_t)(begin - s->at) * (size_t)r->floats};
    return true;
}

void image_rows_put(const struct image_rows *r, int hidden, int pos, int n, int which, float *x) {
    struct run run;
    for (int k = 0; k < r->n; k++) {
        if (!find_run(r, k, pos, n, &run)) continue;
        for (int i = 0; i < run.n; i++) {
            const float *from = run.rows + (size_t)i * (size_t)r->floats + (size_t)which * (size_t)hidden;
            float *to = x + (size_t)(run.at + i) * (size_t)hidden;
            for (int c = 0; c < hidden; c++) to[c] = which ? to[c] + from[c] : from[c];
        }
    }
}

void image_rows_seen(const struct image_rows *r, int pos, int n, int32_t *last) {
    struct run run;
    for (int i = 0; i < n; i++) last[i] = pos + i;
    for (int k = 0; k < r->n; k++)
        if (find_run(r, k, pos, n, &run))
            for (int i = 0; i < run.n; i++) last[run.at + i] = r->spans[k].at + image_tokens(r->spans[k].image) - 1;
}

int image_rows_deep(const struct image_rows *r, int hidden) { return r->features ? r->floats / hidden - 1 : 0; }

int image_rows_add(const struct image_rows *r, int hidden, int pos, int n, int layer, struct gpu_stream *stream,
                   float *x, float *scratch, float *pinned) {
    const size_t width = (size_t)hidden, bytes = width * sizeof *pinned;
    struct run run;
    for (int k = 0; k < r->n; k++) {
        if (!find_run(r, k, pos, n, &run)) continue;
        const size_t at = (size_t)run.at * width;
        for (int i = 0; i < run.n; i++)
            memcpy(pinned + at + (size_t)i * width,
                   run.rows + (size_t)i * (size_t)r->floats + (size_t)(layer + 1) * width, bytes);
        TRY(gpu_copy(stream, scratch + at, pinned + at, (size_t)run.n * bytes, GPU_H2D));
        TRY(rows_add(gpu_stream_exec(stream), x + at, scratch + at, run.n, hidden));
    }
    return 0;
}
