#include "cli/modes/verdict.h"

#include <string.h>

#include "base/mem.h"
#include "cli/modes/bandwidth.h"
#include "cli/terminal/amount.h"

static const struct { const char *stored, *name; } format_names[] = {{"F8_E4M3", "FP8"}, {"F4_E2M1", "FP4"}};

/* Names the number format of most weights. */
static void put_format(struct buf *out, const struct json *root) {
    const struct json *stored = json_get(json_at(json_get(root, "mix"), 0), "dtype");
    if (!stored || stored->type != JSON_STRING) return;
    for (size_t i = 0; i < sizeof format_names / sizeof *format_names; i++)
        if (stored->n == strlen(format_names[i].stored) && !memcmp(stored->string, format_names[i].stored, stored->n)) {
            buf_fmt(out, " · %s", format_names[i].name);
            return;
        }
    buf_fmt(out, " · %.*s", (int)stored->n, stored->string);
}

static void put_model(struct buf *out, const struct json *root) {
    const struct json *family = json_get(root, "family");
    const long long layers = json_int(json_get(root, "layers"), 0),
                    moe = json_int(json_get(root, "layers_with_experts"), 0);
    char all[32], active[32];
    if (family && family->type == JSON_STRING) buf_add(out, family->string, family->n);
    buf_fmt(out, " · %s", amount_weights((uint64_t)json_int(json_path(root, "parameters.all"), 0), all, sizeof all));
    if (moe)
        buf_fmt(out, " (%s active)",
                amount_weights((uint64_t)json_int(json_path(root, "parameters.active"), 0), active, sizeof active));
    put_format(out, root);
    buf_fmt(out, " · %s, ", amount_count(layers, "layer", all, sizeof all));
    if (!moe) buf_str(out, "no experts");
    else {
        if (moe < layers) buf_fmt(out, "%lld with ", moe);
        buf_fmt(out, "%lld experts, %lld used", (long long)json_int(json_path(root, "experts.routed"), 0),
                (long long)json_int(json_path(root, "experts.active"), 0));
    }
    const long long context = json_int(json_get(root, "context"), 0);
    if (context >= 4096) buf_fmt(out, " · context %lldk\n", context / 1024);
    else buf_fmt(out, " · context %lld\n", context);
}

static void put_fit(struct buf *out, const struct json *root) {
    uint64_t all = (uint64_t)json_int(json_path(root, "bytes.all"), 0);
    const uint64_t token = (uint64_t)json_int(json_path(root, "bytes.per_token"), 0);
    const double rate = bandwidth_cached();
    char bytes[32], have[32], read[32], number[32];
    if (json_path(root, "images.file")) all += (uint64_t)json_int(json_path(root, "bytes.vision"), 0); /* not in them */
    amount_bytes(all, bytes, sizeof bytes), amount_bytes(mem_total(), have, sizeof have);
    if (all >= mem_total()) {
        buf_fmt(out, "does not fit: %s, %s of memory; weights are read from the disk, at its speed\n", bytes, have);
        return;
    }
    buf_fmt(out, "fits: %s of %s    ", bytes, have);
    if (rate > 0 && token)
        buf_fmt(out, "speed: up to %s tok/s (memory bandwidth %s/s)\n",
                amount_rate(rate / (double)token, number, sizeof number),
                amount_bytes((uint64_t)rate, read, sizeof read));
    else
        buf_fmt(out, "speed: memory must read %s per token (--models measures how fast it is)\n",
                amount_bytes(token, read, sizeof read));
}

static void put_runs(struct buf *out, const struct json *root) {
    enum { CPU_CHARS = 4 }; /* runs.attention is "cpu LEVEL" */
    const struct json *level = json_path(root, "runs.attention"), *gpus = json_path(root, "runs.gpus"),
                      *resident = json_path(root, "runs.resident");
    char kv[32];
    if (gpus && gpus->n && resident && resident->type == JSON_STRING)
        buf_fmt(out, "runs on GPUs: %.*s\nruns on the CPU: the rest", (int)resident->n, resident->string);
    else buf_str(out, "runs: attention and experts on the CPU");
    if (level && level->type == JSON_STRING && level->n > CPU_CHARS)
        buf_fmt(out, " (%.*s)", (int)level->n - CPU_CHARS, level->string + CPU_CHARS);
    buf_fmt(out, "    KV cache: %s per token\n",
            amount_bytes((uint64_t)json_int(json_path(root, "bytes.kv_per_token"), 0), kv, sizeof kv));
}

static void put_images(struct buf *out, const struct json *root) {
    const struct json *file = json_path(root, "images.file");
    if (!json_bool(json_path(root, "images.read"), false)) return;
    buf_str(out, "reads images");
    if (file && file->type == JSON_STRING) buf_fmt(out, " with the tower in %.*s", (int)file->n, file->string);
    buf_str(out, "\n");
}

void verdict_put(struct buf *out, const struct json *root) {
    put_model(out, root);
    put_fit(out, root);
    put_runs(out, root);
    put_images(out, root);
}
