#include "engine/model/quantization.h"

/* Sources: transformers' quantizer configs; compressed-tensors' QuantizationScheme and CompressionFormat; AutoGPTQ,
 * GPTQModel and AutoAWQ; NVIDIA's modelopt; AutoRound's exporters; SGLang's w4afp8; vLLM's reader
 * of AMD Quark's files.
 */

static void read_block(struct config_reader *in, struct config *c, const struct json *block, const char *key) {
    if (!block || block->type == JSON_NULL) return;
    const bool is_pair = block->type == JSON_ARRAY && block->n == 2;
    const int64_t rows = is_pair ? json_int(json_at(block, 0), 0) : 0,
                  cols = is_pair ? json_int(json_at(block, 1), 0) : 0;
    if (rows < 1 || cols < 1 || rows > 4096 || cols > 4096)
        config_fail(in, "'quantization_config.%s' must be two numbers of 1 to 4096", key);
    else c->block_rows = (int)rows, c->block_cols = (int)cols;
}

/* Columns per scale; -1 or null is a whole row. */
static int read_group_size(struct config_reader *in, const struct json *v, const char *key) {
    const int64_t n = v && v->type != JSON_NULL ? json_int(v, 0) : -1;
    if (n != -1 && (n < 2 || n > 65536 || n % 2))
        config_fail(in, "'quantization_config.%s' is %lld; hearth takes -1 and even numbers", key, (long long)n);
    return n > 0 ? (int)n : 0;
}

/* Weights of a group of compressed-tensors or modelopt. */
static void check_scheme(struct config_reader *in, const struct json *w) {
    const struct json *type = json_get(w, "type");
    const int64_t bits = json_int(json_get(w, "num_bits"), 8);
    const bool is_int = type && json_is(type, "int"), is_float = !type || json_is(type, "float");
    if (is_int ? bits >= 2 && bits <= 8 : is_float && (bits == 4 || bits == 8)) return;
    config_fail(in,
                "'quantization_config.config_groups' has weights of type \"%.*s\" and %lld bits; hearth computes with "
                "\"float\" of 4 and 8 and \"int\" of 2 to 8",
                type && type->type == JSON_STRING ? (int)(type->n < 40 ? type->n : 40) : 5,
                type && type->type == JSON_STRING ? type->string : "float", (long long)bits);
}

/* compressed-tensors and modelopt: quantization groups, under any name. All must have the same block size. */
static void read_groups(struct config_reader *in, struct config *c) {
    const struct json *groups = config_get(in, "config_groups");
    bool has_block = false, is_first = true;
    for (uint32_t i = 0; groups && groups->type == JSON_OBJECT && i < groups->n && !in->rc; i++) {
        const struct json *group = &groups->items[2 * i + 1],
                          *w = group->type == JSON_OBJECT ? json_get(group, "weights") : NULL;
        if (!w || w->type != JSON_OBJECT) continue;
        check_scheme(in, w);
        const int columns = read_group_size(in, json_get(w, "group_size"), "config_groups.weights.group_size");
        /* if groups differ, the shapes of tensors tell */
        c->quant.group = is_first || c->quant.group == columns ? columns : 0;
        const int bits = (int)json_int(json_get(w, "num_bits"), 8);
        c->quant.bits = is_first || c->quant.bits == bits ? bits : 0;
        is_first = false;
        const struct json *block = json_get(w, "block_structure");
        if (!block || block->type == JSON_NULL) continue;
        const int rows = c->block_rows, cols = c->block_cols;
        read_block(in, c, block, "config_groups.weights.block_structure");
        if (has_block && (c->block_rows != rows || c->block_cols != cols))
            config_fail(
                in, "'quantization_config.config_groups' has blocks of %d x %d and of %d x %d; hearth takes one size",
                rows, cols, c->block_rows, c->block_cols);
        has_block = true;
    }
}

static void read_compressed(struct config_reader *in, struct config *c) {
    static const char *const formats[] = {
        "float-quantized",      "naive-quantized", "int-quantized",   "pack-quantized", "nvfp4-pack-quantized",
        "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision", "dense",          NULL};
    config_choice(in, "format", formats, 0);
    read_groups(in, c);
    const struct json *sparsity = config_get(in, "sparsity_config"),
                      *kind = sparsity ? json_get(sparsity, "format") : NULL;
    if (kind && kind->type == JSON_STRING && !json_is(kind, "dense"))
        config_fail(in, "'quantization_config.sparsity_config.format' is \"%.*s\"; hearth supports dense",
                    (int)(kind->n < 40 ? kind->n : 40), kind->string);
    const struct json *transform = config_get(in, "transform_config"),
                      *rotations = transform ? json_get(transform, "config_groups") : NULL;
    if (rotations && rotations->n)
        config_fail(in, "'quantization_config.transform_config' rotates activations, which hearth does not compute");
}

static void read_modelopt(struct config_reader *in, struct config *c) {
    static const char *const algorithms[] = {
        "FP8",   "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "FP8_PB_REAL", "NVFP4", "W4A16_NVFP4", "MXFP4",
        "MXFP8", "MIXED_PRECISION",           NULL};
    config_choice(in, "quant_algo", algorithms, 0);
    read_groups(in, c);
}

static void read_gptq(struct config_reader *in, struct config *c) {
    static const char *const formats[] = {"gptq", "gptq_v2", NULL}, *const words[] = {"int32", NULL};
    c->quant.bits = config_int(in, "bits", 4, 1, 32);
    if (c->quant.bits != 2 && c->quant.bits != 3 && c->quant.bits != 4 && c->quant.bits != 8)
        config_fail(in, "'quantization_config.bits' is %d; hearth computes with GPTQ weights of 2, 3, 4 and 8 bits",
                    c->quant.bits);
    c->quant.group = read_group_size(in, config_get(in, "group_size"), "group_size");
    c->quant.zeros_minus_one =
        !config_choice(in, config_has(in, "checkpoint_format") ? "checkpoint_format" : "format", formats, 0);
    config_choice(in, "pack_dtype", words, 0);
    if (config_bool(in, "is_marlin_format", false))
        config_fail(in, "'quantization_config.is_marlin_format' is set; hearth reads GPTQ's own layout");
}

static void read_awq(struct config_reader *in, struct config *c) {
    static const char *const versions[] = {"gemm", "GEMM", NULL};
    c->quant.bits = config_int(in, "bits", config_has(in, "w_bit") ? config_int(in, "w_bit", 4, 1, 32) : 4, 1, 32);
    if (c->quant.bits != 4)
        config_fail(in, "'quantization_config.bits' is %d; hearth computes with AWQ weights of 4 bits", c->quant.bits);
    c->quant.group = read_group_size(in, config_get(in, config_has(in, "q_group_size") ? "q_group_size" : "group_size"),
                                     "group_size");
    config_choice(in,
                  config_has(in, "version")             ? "version"
                  : config_has(in, "checkpoint_format") ? "checkpoint_format"
                                                        : "format",
                  versions, 0);
}

/* AutoRound: the layout of GPTQ or AWQ by packing_format, mostly symmetric codes; floats as compressed-tensors has
 * them. */
static void read_auto_round(struct config_reader *in, struct config *c) {
    enum { GPTQ, GPTQ_V2, PLAIN, AWQ, AWQ_TOO, COMPRESSED, FP8, FP8_STATIC };
    static const char *const formats[] = {[GPTQ] = "auto_round:auto_gptq",
                                          [GPTQ_V2] = "auto_round:gptqmodel",
                                          [PLAIN] = "auto_round",
                                          [AWQ] = "auto_round:auto_awq",
                                          [AWQ_TOO] = "auto_round:awq",
                                          [COMPRESSED] = "auto_round:llm_compressor",
                                          [FP8] = "auto_round:fp8",
                                          [FP8_STATIC] = "auto_round:fp8_static",
                                          NULL};
    static const char *const integers[] = {"int", NULL}, *const floats[] = {
                                                             "mx_fp",       "nv_fp",  "mx_fp4", "mx_fp8",
                                                             "mx_fp_rceil", "nv_fp4", "fp",     "nv_fp4_with_static_gs",
                                                             "fp8",         NULL};
    const int format = config_choice(in, "packing_format", formats, GPTQ);
    config_choice(in, "data_type", format < COMPRESSED ? integers : floats, 0);
    if (format >= COMPRESSED) {
        c->quant.method = format == COMPRESSED ? QUANT_COMPRESSED : QUANT_FLOAT;
        return;
    }
    if (format == AWQ || format == AWQ_TOO) {
        c->quant.method = QUANT_AWQ;
        read_awq(in, c);
        return;
    }
    c->quant.method = QUANT_GPTQ;
    read_gptq(in, c);
    c->quant.zeros_minus_one = format == GPTQ;
    /* its versions disagree on what they store there */
    c->quant.zeros_are_half = format == PLAIN && config_bool(in, "sym", true);
}

/* Experts of four bits in groups of columns beside FP8 in blocks. */
static void read_w4afp8(struct config_reader *in, struct config *c) {
    c->quant.group =
        config_has(in, "group_size") ? read_group_size(in, config_get(in, "group_size"), "group_size") : 128;
}

static void read_bitsandbytes(struct config_reader *in, struct config *c) {
    static const char *const types[] = {"nf4", "fp4", NULL};
    (void)c;
    if (!config_bool(in, "load_in_8bit", false)) config_choice(in, "bnb_4bit_quant_type", types, 0);
}

/* AMD's Quark: what is done to the weights of a kind of layer. A list has the steps: NVFP4's codes and their scales. */
static void check_quark(struct config_reader *in, struct config *c, const struct json *weight, const char *where) {
    const bool is_list = weight && weight->type == JSON_ARRAY;
    const struct json *w = is_list ? json_at(weight, 0) : weight, *type = json_get(w, "dtype"),
                      *block = json_get(w, "block_size");
    const bool is_nvfp4 =
        is_list && weight->n == 2 && json_is(type, "fp4") && json_is(json_get(json_at(weight, 1), "dtype"), "fp8_e4m3");
    const bool is_plain = !is_list && (json_is(type, "fp4") || json_is(type, "fp8_e4m3") ||
                                       (json_is(type, "int8") && json_bool(json_get(w, "symmetric"), true)));
    if (!weight || weight->type == JSON_NULL) return;
    if (!is_nvfp4 && !is_plain)
        config_fail(in,
                    "'quantization_config.%s' has weights of type \"%.*s\"; hearth computes with Quark's fp4, fp8_e4m3 "
                    "and symmetric int8",
                    where, type && type->type == JSON_STRING ? (int)(type->n < 40 ? type->n : 40) : 1,
                    type && type->type == JSON_STRING ? type->string : "?");
    else if (block && block->type == JSON_ARRAY) read_block(in, c, block, "block_size");
}
static void check_quark_list(struct config_reader *in, struct config *c, const char *key) {
    const struct json *list = config_get(in, key);
    for (uint32_t i = 0; list && list->type == JSON_OBJECT && i < list->n && !in->rc; i++)
        check_quark(in, c, json_get(&list->items[2 * i + 1], "weight"), key);
}
static void read_quark(struct config_reader *in, struct config *c) {
    const struct json *algorithms = config_get(in, "algo_config");
    check_quark(in, c, json_get(config_get(in, "global_quant_config"), "weight"), "global_quant_config");
    check_quark_list(in, c, "layer_quant_config");
    check_quark_list(in, c, "layer_type_quant_config");
    for (uint32_t i = 0; algorithms && algorithms->type == JSON_ARRAY && i < algorithms->n; i++)
        if (json_is(json_get(&algorithms->items[i], "name"), "rotation") ||
            json_is(json_get(&algorithms->items[i], "name"), "quarot"))
            config_fail(in, "'quantization_config.algo_config' rotates activations, which hearth does not compute");
}

enum { MODELOPT = 4 }; /* some of its files do not name it */
static const struct {
    const char *name;
    uint8_t method;
    void (*read)(struct config_reader *in, struct config *c);
} methods[] = {{"fp8", QUANT_FLOAT, NULL},
               {"mxfp4", QUANT_FLOAT, NULL},
               {"mxfp8", QUANT_FLOAT, NULL},
               {"compressed-tensors", QUANT_COMPRESSED, read_compressed},
               [MODELOPT] = {"modelopt", QUANT_MODELOPT, read_modelopt},
               {"gptq", QUANT_GPTQ, read_gptq},
               {"awq", QUANT_AWQ, read_awq},
               {"fbgemm_fp8", QUANT_FLOAT, NULL},
               {"quark", QUANT_FLOAT, read_quark},
               {"auto-round", QUANT_GPTQ, read_auto_round},
               {"intel/auto-round", QUANT_GPTQ, read_auto_round},
               {"w4afp8", QUANT_W4AFP8, read_w4afp8},
               {"bitsandbytes", QUANT_BITSANDBYTES, read_bitsandbytes},
               {"torchao", QUANT_FLOAT, NULL},
               /* as other programs call them */
               {"compressed_tensors", QUANT_COMPRESSED, read_compressed},
               {"modelopt_fp4", QUANT_MODELOPT, read_modelopt},
               {"modelopt_fp8", QUANT_MODELOPT, read_modelopt}};
enum { N_METHODS = sizeof methods / sizeof *methods };

void quantization_read(struct config_reader *r, struct config *c) {
    c->block_rows = c->block_cols = 128;
    const struct json *q = config_get(r, "quantization_config"), *old = config_get(r, "compression_config");
    if (!q) q = old; /* llm-compressor's name before September 2024 */
    if (!q) return;
    if (q->type != JSON_OBJECT) {
        config_fail(r, "'quantization_config' is not an object");
        return;
    }
    struct config_reader in = {.root = q, .what = r->what, .family = r->family, .e = r->e, .rc = r->rc};
    const char *names[N_METHODS + 1] = {NULL};
    for (int i = 0; i < N_METHODS; i++) names[i] = methods[i].name;
    const bool is_named = config_has(&in, "quant_method"), is_modelopt = !is_named && config_has(&in, "quant_algo");
    if (!is_named && !is_modelopt && config_has(&in, "group_size") && config_has(&in, "bits")) {
        c->quant.method = QUANT_MLX; /* the shapes of tensors say the rest */
        return;
    }
    if (!is_named && !is_modelopt) config_fail(&in, "'quantization_config.quant_method' is missing");
    const int method = config_choice(&in, "quant_method", names, is_modelopt ? MODELOPT : 0);
    c->quant.method = methods[method].method;
    read_block(&in, c, config_get(&in, "weight_block_size"), "weight_block_size");
    if (methods[method].read && !in.rc) methods[method].read(&in, c);
    const struct json *scheme = config_get(&in, "activation_scheme");
    c->quant.fp8_activations = !method && scheme && json_is(scheme, "dynamic") &&
                               config_get(&in, "weight_block_size") && c->block_rows == 128 && c->block_cols == 128;
    const struct json *fmt = config_get(&in, "fmt");
    if (fmt && !json_is(fmt, "e4m3") && !json_is(fmt, "float8_e4m3fn") && !json_is(fmt, "e4m3fn"))
        config_fail(&in, "'quantization_config.fmt' is \"%.*s\"; hearth supports e4m3",
                    (int)(fmt->n < 40 ? fmt->n : 40), fmt->n ? fmt->string : "");
    r->rc = in.rc;
}
