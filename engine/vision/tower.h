#pragma once
/* The vision tower of a model: config, weights, and forward pass over the operations table. It turns the patches of an
 * image into input rows of the text model. To add a family, write a file that fills a struct tower_config, and add a
 * row to tower_families (tower_open.c). Not here: decoding and resizing (picture.h, resample.h), what a prompt has of
 * an image (image.h), and when the tower runs (session/image_queue.h).
 *
 * An image has grid_h * grid_w patches of patch * patch pixels. They are ordered by blocks of merge * merge patches,
 * the blocks row by row, which become one row of the text model, a token. */
#include "base/mem.h"
#include "base/ops.h"
#include "engine/vision/resample.h"
#include "engine/weights/weights.h"

enum { TOWER_DEEP_MOST = 8, TOWER_LAYERS_MOST = 256 };

/* Names of tensors, without the endings .weight and .bias; %d is the number of a layer or of a merger. */
struct tower_names {
    const char *patch, *position, *norm1, *norm2, *qkv, *proj, *fc1, *fc2;
    const char *merger_norm, *merger_fc1, *merger_fc2, *deep_norm, *deep_fc1, *deep_fc2;
    const char *patch_norm, *last_norm; /* NULL: none; of patches before their positions, and after the last layer */
    const char *gate;                   /* NULL: fc2(GELU of fc1), else fc2(SiLU of gate * fc1) */
    /* NULL: the merger norms patches and has two layers, else the second kind of struct tower_merger */
    const char *down, *merger_proj, *merger_gate;
    /* with these, qkv is three matrices; queries and keys are normed by head, values too, but without weights */
    const char *q, *k, *v, *q_norm, *k_norm;
    const char *norm1_after, *norm2_after; /* norms of the outputs of attention and FFN; NULL: none */
    const char *standard;                  /* bias and scale of pooled patches: NAME_bias, NAME_scale; NULL: none */
};
/* How the table of positions is resized to an image: between two entries of a side, where the corners of both are the
 * same, or from four entries (Keys, a = -0.75), where their borders are. */
/* Or a row for each column of patches, then one for each row of them, which are added. */
enum tower_positions { POSITIONS_CORNERS, POSITIONS_CUBIC, POSITIONS_AXES };
struct tower_config {
    int patch, temporal, merge; /* pixels of a patch's side; equal pictures in time; patches of a token's side */
    int hidden, heads, depth, inter, out;
    int side; /* the table of positions is [side, side, hidden] */
    float eps;
    bool is_rms, has_bias, has_qkv_bias; /* norms; biases of norms and linear layers of a layer, and of qkv */
    uint8_t positions;                   /* enum tower_positions */
    int merger_inter;                    /* width of a gated merger */
    /* Gemma 4: patches are [row, column, channel], without a bias; a token is the mean of its patches, normed and
     * projected; half of a head turns by column, the other by row; FFNs have a gate with GELU */
    bool is_pooled;
    bool is_clipped;                 /* inputs and outputs of matrices are clipped to bounds among the tensors */
    bool is_split_patch;             /* a tensor of weights for each time: .weight, .weight.1 */
    bool is_square_table;            /* the table of positions is [side, side, hidden], else [side * side, hidden] */
    bool is_interleaved;             /* neighbours form a rotated pair; even pairs rotate by column, odd ones by row */
    bool is_deep_by_layer;           /* the number in the name of a deep merger is that of the layer */
    double theta;                    /* base of the rotary frequencies */
    int n_deep;                      /* deep mergers: their outputs are added after the text model's first layers */
    int deep_layer[TOWER_DEEP_MOST]; /* the tower's layer that each reads */
    struct tower_names names;
    /* The processor: limits of pixels, and what a pixel becomes: (v * rescale - mean) / std. */
    struct resample_limits limits;
    uint8_t filter; /* enum resample_filter */
    double rescale, mean[3], std[3];
    int32_t image_token; /* placeholder of an image in the template's text */
    int32_t table_token; /* tables by token give an image's tokens the rows of this one */
    int32_t marks[2];    /* tokens before an image and after it; 0: none */
};
/* One of the tower's mergers. The first kind: norm, two linear layers with an exact GELU between them; a deep one norms
 * whole tokens, the last one patches. The second: down joins the patches of a token, then a linear layer, norm, exact
 * GELU, and fc2(SiLU of gate * fc1). */
struct tower_merger {
    float *norm, *norm_bias, *fc1_bias, *fc2_bias, *down_bias;
    struct mat fc1, fc2, down, proj, gate;
};
struct tower_clip {
    float least_in, most_in, least_out, most_out;
};
enum tower_mat { TOWER_Q, TOWER_K, TOWER_V, TOWER_PROJ, TOWER_GATE, TOWER_FC1, TOWER_FC2, TOWER_MATS };
struct tower_layer {
    struct mat q, k, v; /* instead of qkv */
    float *q_norm, *k_norm, *norm1_after, *norm2_after;
    struct tower_clip clip[TOWER_MATS];
    float *norm1, *norm1_bias, *norm2, *norm2_bias, *qkv_bias, *proj_bias, *fc1_bias, *fc2_bias;
    struct mat qkv, proj, fc1, fc2, gate;
};
struct tower {
    struct tower_config config;
    struct mat patch;  /* [hidden, 3 * temporal * patch * patch] */
    float *patch_bias; /* [hidden] */
    float *position;   /* [side * side, hidden] */
    float *patch_norm, *last_norm, *last_norm_bias;
    float *standard_bias, *standard_scale;
    bool has_places;     /* the text model turns images by row and column (M-RoPE) */
    float pixel[3][256]; /* the normalized float of each 8-bit value, by channel */
    struct tower_layer *layers;
    struct tower_merger merger, deep[TOWER_DEEP_MOST];
    size_t bytes;           /* size of all tensors */
    struct weights *beside; /* a GGUF file of its own, whose tensors these are; NULL: the model's */
};

struct tower_family {
    const char *model_type; /* as in config.json */
    const char *token_key;  /* key of the image token in config.json, if that has no 'image_token_id'; or NULL */
    int32_t image_token;    /* the id if config.json has neither */
    /* Fills c from vision_config; root is the whole config.json. ERR_MODEL names what is wrong. */
    int (*parse)(struct tower_config *c, const struct json *root, const char *what, struct error *e);
};
/* A tower in a GGUF file of its own, as llama.cpp's converter writes it. */
struct tower_projector {
    const char *type; /* clip.projector_type */
    const char *mark; /* text of the image token */
    /* Fills c from the metadata of the file. ERR_MODEL names what is wrong. */
    int (*parse)(struct tower_config *c, const struct json *meta, const char *what, struct error *e);
};
extern const struct tower_projector tower_projector_qwen3;
extern const struct tower_family tower_family_qwen3_vl, tower_family_qwen3_vl_moe, tower_family_qwen3_5,
    tower_family_qwen3_5_moe, tower_family_qwen4_exp, tower_family_glm4v_moe, tower_family_kimi_k25,
    tower_family_gemma4;

/* Opens the vision tower of an opened checkpoint. Without one that hearth can compute, *out is NULL and `why` gives the
 * reason. file: the GGUF file with the tower of a GGUF model (--mmproj); NULL: the mmproj*.gguf beside the model that
 * fits it. A tower that is damaged, or does not fit, is no error but the reason why there is none; of a given file it
 * is ERR_MODEL. ERR_USAGE: a file for a model that is none of GGUF. Vectors are in w's arena. */
int tower_open(struct tower **out, struct weights *w, const char *file, char *why, size_t why_size, struct error *e);
void tower_close(struct tower **t);
void tower_limit(struct tower *t, int tokens); /* makes larger images smaller than the model would have them */
int tower_most_tokens(const struct tower *t);  /* tokens of the largest image; the limits count patches */
/* floats of a token: its row, then one row for each deep merger */
static inline int tower_row_floats(const struct tower *t) { return (1 + t->config.n_deep) * t->config.out; }

/* The tower's work for an image of n patches. */
struct tower_work {
    double flops, attention_flops; /* of products, and of attention */
    double bytes;                  /* of weights */
    int products, attention_calls;
};
struct tower_work tower_work(const struct tower *t, int n);

/* Runs the tower over one image, step by step. */
struct tower_run {
    const struct tower *tower;
    const uint8_t *rgb; /* [grid_h * patch, grid_w * patch, 3], owned by the caller until the end */
    int grid_h, grid_w;
    int layer; /* the next one; -1: patches; depth: the last merger */
    float *x, *xn, *qkv, *att, *mlp, *ones, *up, *clipped, *cos, *sin;
    void *k, *v; /* planes of keys and values, [patches, hidden] */
    int32_t *last;
};
static inline int tower_run_steps(const struct tower *t) { return t->config.depth + 2; }
/* Allocates a run. ERR_MEMORY. */
int tower_run_open(struct tower_run *r, const struct tower *t, const uint8_t *rgb, int grid_h, int grid_w,
                   struct error *e);
/* Computes the patches, a layer, or the last merger. Returns 1 if more steps follow, 0 at the end; rows [tokens,
 * tower_row_floats()] is complete then. Otherwise the code of an operation's error. */
int tower_run_step(struct tower_run *r, struct exec *x, float *rows);
void tower_run_close(struct tower_run *r);
