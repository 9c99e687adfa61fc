#include "engine/vision/tower_config.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

int tower_ints(struct config_reader *r, const char *key, const int *none, int n_none, int *out, int most) {
    const struct json *j = config_get(r, key);
    if (!j) memcpy(out, none, (size_t)n_none * sizeof *out);
    if (!j) return n_none;
    if (j->type != JSON_ARRAY || j->n > (uint32_t)most) {
        config_fail(r, "'%s' is not a list of at most %d numbers", key, most);
        return 0;
    }
    for (uint32_t i = 0; i < j->n; i++) {
        const int64_t v = json_int(&j->items[i], -1);
        out[i] = v < 0 || v > 1 << 20 ? -1 : (int)v;
    }
    return (int)j->n;
}

/* --- preprocessor_config.json ------------------------------------------------------------------ */

static int fail(const char *path, const char *why, struct error *e) {
    return error_set(e, ERR_MODEL, "%s: %s", path, why);
}

static int read_channels(const struct json *j, const char *path, const char *key, double *out, struct error *e) {
    char text[96];
    if (!j) return 0;
    bool is_list = j->type == JSON_ARRAY && j->n == 3;
    for (uint32_t i = 0; i < 3 && is_list; i++) {
        out[i] = json_num(&j->items[i], -1);
        is_list = out[i] >= 0 && out[i] < 1e6;
    }
    if (is_list) return 0;
    snprintf(text, sizeof text, "'%s' is not a list of three numbers", key);
    return fail(path, text, e);
}

static int check_processor(const struct tower_config *c, const char *path, struct error *e) {
    if (!(c->limits.min_pixels >= 1 && c->limits.max_pixels >= c->limits.min_pixels && c->limits.max_pixels <= 1 << 28))
        return fail(path, "limits of pixels ('size') that no image can keep", e);
    if (!(c->std[0] > 0 && c->std[1] > 0 && c->std[2] > 0 && c->rescale > 0))
        return fail(path, "'image_std' and 'rescale_factor' must be above 0", e);
    return 0;
}

/* Kimi K2.5's limits, as published or as transformers saves them. */
static int read_patches(struct tower_config *c, const struct json *root, const char *path, struct error *e) {
    const struct json *all = json_get(root, "in_patch_limit"), *side = json_get(root, "patch_limit_on_one_side");
    if (!all) all = json_get(root, "max_patches");
    if (!side) side = json_path(root, "size.max_height");
    const int64_t n = json_int(all, c->limits.most_patches), m = json_int(side, c->limits.most_side);
    if (n < 1 || n > 1 << 20 || m < 1 || m > 1 << 12) return fail(path, "limits of patches that no image can keep", e);
    c->limits.most_patches = (int)n, c->limits.most_side = (int)m;
    return 0;
}

static int read_filter(struct tower_config *c, const struct json *root, const char *path, struct error *e) {
    const int64_t resample = json_int(json_get(root, "resample"), 3);
    if (resample != 2 && resample != 3) return fail(path, "'resample' is neither 2 (bilinear) nor 3 (bicubic)", e);
    c->filter = resample == 2 ? RESAMPLE_BILINEAR : RESAMPLE_BICUBIC;
    return 0;
}

/* Gemma 4's processor, which norms no pixels: the tower brings 0 to 1 to -1 to 1. */
static int read_tokens(struct tower_config *c, const struct json *root, const char *path, struct error *e) {
    static const char *const on[] = {"do_resize", "do_rescale", "do_convert_rgb"};
    const int cells = c->merge * c->merge;
    const int64_t most = json_int(json_get(root, "max_soft_tokens"), c->limits.most_patches / cells);
    double mean[3] = {0}, std[3] = {1, 1, 1};
    TRY(read_channels(json_get(root, "image_mean"), path, "image_mean", mean, e));
    TRY(read_channels(json_get(root, "image_std"), path, "image_std", std, e));
    bool is_plain = true;
    for (int i = 0; i < 3; i++) is_plain = is_plain && mean[i] == 0 && std[i] == 1;
    for (size_t i = 0; i < sizeof on / sizeof *on; i++) is_plain = is_plain && json_bool(json_get(root, on[i]), true);
    if (!is_plain) return fail(path, "it has or leaves out a step, other than hearth does", e);
    if (most < 1 || most > 1 << 14 || most * c->merge > c->side)
        return fail(path, "'max_soft_tokens' allows images that the tower's table of positions does not", e);
    if (json_int(json_get(root, "patch_size"), c->patch) != c->patch ||
        json_int(json_get(root, "pooling_kernel_size"), c->merge) != c->merge)
        return fail(path, "sizes of patches differ from those in config.json", e);
    c->limits.most_patches = (int)most * cells;
    c->rescale = json_num(json_get(root, "rescale_factor"), c->rescale);
    if (!(c->rescale > 0)) return fail(path, "'rescale_factor' must be above 0", e);
    return read_filter(c, root, path, e);
}

static int read_processor(struct tower_config *c, const struct json *root, const char *path, struct error *e) {
    if (c->limits.keeps_ratio) return read_tokens(c, root, path, e);
    static const char *const on[] = {"do_resize", "do_rescale", "do_normalize", "do_convert_rgb"};
    const struct json *size = json_get(root, "size"), *least = json_get(size, "shortest_edge"),
                      *most = json_get(size, "longest_edge");
    if (!least) least = json_get(root, "min_pixels");
    if (!most) most = json_get(root, "max_pixels");
    c->limits.min_pixels = json_num(least, c->limits.min_pixels);
    c->limits.max_pixels = json_num(most, c->limits.max_pixels);
    if (c->limits.most_patches) TRY(read_patches(c, root, path, e));
    c->rescale = json_num(json_get(root, "rescale_factor"), c->rescale);
    TRY(read_channels(json_get(root, "image_mean"), path, "image_mean", c->mean, e));
    TRY(read_channels(json_get(root, "image_std"), path, "image_std", c->std, e));
    for (size_t i = 0; i < sizeof on / sizeof *on; i++)
        if (!json_bool(json_get(root, on[i]), true)) return fail(path, "it leaves out a step that hearth does", e);
    if (json_int(json_get(root, "patch_size"), c->patch) != c->patch ||
        json_int(json_get(root, "merge_size"), c->merge) != c->merge ||
        json_int(json_get(root, "temporal_patch_size"), c->temporal) != c->temporal)
        return fail(path, "sizes of patches differ from those in config.json", e);
    TRY(read_filter(c, root, path, e));
    return check_processor(c, path, e);
}

int tower_read_clip(struct tower_config *c, const struct json *meta, const char *what, struct error *e) {
    c->limits.min_pixels = json_num(json_get(meta, "clip.vision.image_min_pixels"), c->limits.min_pixels);
    c->limits.max_pixels = json_num(json_get(meta, "clip.vision.image_max_pixels"), c->limits.max_pixels);
    TRY(read_channels(json_get(meta, "clip.vision.image_mean"), what, "clip.vision.image_mean", c->mean, e));
    TRY(read_channels(json_get(meta, "clip.vision.image_std"), what, "clip.vision.image_std", c->std, e));
    return check_processor(c, what, e);
}

void tower_set_processor(struct tower_config *c, double min_pixels, double max_pixels) {
    c->limits = (struct resample_limits){
        .factor = c->patch * c->merge, .patch = c->patch, .min_pixels = min_pixels, .max_pixels = max_pixels};
    c->filter = RESAMPLE_BICUBIC;
    c->rescale = 1 / 255.0;
    for (int i = 0; i < 3; i++) c->mean[i] = c->std[i] = 0.5;
}

int tower_read_processor(struct tower_config *c, const char *dir, struct error *e) {
    enum { MOST_BYTES = 1 << 20 };
    char path[4096], *text = NULL;
    size_t n;
    struct arena a = {0};
    struct json root;
    TRY(file_join(path, sizeof path, dir, "preprocessor_config.json", e));
    const bool is_apart = file_exists(path); /* else transformers 5 may have saved it with the tokenizer's part */
    if (!is_apart) TRY(file_join(path, sizeof path, dir, "processor_config.json", e));
    if (!file_exists(path)) return 0; /* what the published models have */
    int rc = file_read(path, MOST_BYTES, &text, &n, e);
    if (!rc) rc = json_parse(&a, text, n, JSON_PYTHON, path, &root, e);
    const struct json *part = rc || is_apart ? &root : json_get(&root, "image_processor"),
                      *published = json_get(part, "media_proc_cfg"); /* Kimi K2.5 */
    if (published) part = published;
    if (!rc && part) rc = read_processor(c, part, path, e);
    arena_free(&a);
    mem_free(text);
    return rc;
}
