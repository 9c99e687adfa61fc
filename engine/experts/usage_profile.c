#include "engine/experts/usage_profile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

enum { VERSION = 1, MIN_TOKENS = 16 };
static const uint32_t MAX_COUNT = UINT32_MAX / 4; /* sums of three counts do not overflow */

struct header {
    char magic[8]; /* "hearthUP" */
    uint32_t version, n_layers, n_experts, topk;
    uint64_t fingerprint, sum; /* sum: of the fields before it and the counts */
};

static size_t n_counts(const struct config *c) { return (size_t)c->n_layers * (size_t)c->n_experts; }

static struct header make_header(const struct usage_profile *u, const uint32_t *counts) {
    struct header h = {.magic = "hearthUP", /* without the terminator */
                       .version = VERSION,
                       .n_layers = (uint32_t)u->c->n_layers,
                       .n_experts = (uint32_t)u->c->n_experts,
                       .topk = (uint32_t)u->c->topk,
                       .fingerprint = u->fingerprint};
    h.sum = hash64(counts, n_counts(u->c) * sizeof *counts, hash64(&h, offsetof(struct header, sum), 0));
    return h;
}

/* Copies the file's counts; false: it is not a profile of this checkpoint. */
static bool parse(struct usage_profile *u, const char *data, size_t size) {
    const size_t bytes = n_counts(u->c) * sizeof *u->before;
    if (size != sizeof(struct header) + bytes) return false;
    memcpy(u->before, data + sizeof(struct header), bytes);
    const struct header h = make_header(u, u->before);
    if (memcmp(&h, data, sizeof h)) {
        memset(u->before, 0, bytes);
        return false;
    }
    for (size_t i = 0; i < n_counts(u->c); i++)
        if (u->before[i] > MAX_COUNT) u->before[i] = MAX_COUNT;
    return true;
}

static void read_file(struct usage_profile *u) {
    char *data = NULL;
    size_t size;
    struct error e = {0};
    if (access(u->path, F_OK)) return;
    const int rc = file_read(u->path, sizeof(struct header) + n_counts(u->c) * sizeof *u->before + 1, &data, &size, &e);
    if (rc) log_say(LOG_WARN, "ignoring the usage profile: %s", e.text);
    else if (!parse(u, data, size)) {
        log_say(LOG_WARN,
                "ignoring and removing the usage profile %s: damaged or of another version; hearth writes a new one "
                "when it ends",
                u->path);
        unlink(u->path);
    }
    mem_free(data);
}

int usage_profile_open(struct usage_profile **out, const struct config *c, const char *dir, uint64_t fingerprint,
                       struct error *e) {
    char path[4096] = "";
    struct usage_profile *u = *out = mem_calloc(1, sizeof *u);
    if (u) u->before = mem_calloc(2 * n_counts(c) + 1, sizeof *u->before);
    const bool fits =
        dir && (size_t)snprintf(path, sizeof path, "%s/%016" PRIx64 ".usage", dir, fingerprint) < sizeof path;
    if (!u || !u->before || (fits && !(u->path = mem_strdup(path)))) {
        usage_profile_close(out);
        return error_set(e, ERR_MEMORY, "no memory for a usage profile");
    }
    u->c = c, u->fingerprint = fingerprint, u->prompts = u->before + n_counts(c);
    if (u->path) read_file(u);
    return 0;
}

void usage_profile_close(struct usage_profile **up) {
    struct usage_profile *u = *up;
    if (!u) return;
    *up = NULL;
    mem_free(u->path);
    mem_free(u->before);
    mem_free(u->pinned);
    mem_free(u);
}

void usage_profile_add(struct usage_profile *u, int layer, int expert, uint32_t rows) {
    if (!u) return;
    uint32_t *n = &u->prompts[(size_t)layer * (size_t)u->c->n_experts + (size_t)expert];
    *n = rows < MAX_COUNT - *n ? *n + rows : MAX_COUNT;
}
void usage_profile_count(struct usage_profile *u, int layer, const int32_t *ids, int n) {
    for (int i = 0; i < n && u; i++)
        if (ids[i] >= 0 && ids[i] < u->c->n_experts) usage_profile_add(u, layer, ids[i], 1);
}

bool usage_profile_shares(const struct usage_profile *u, int layer, float *share) {
    const int n = u ? u->c->n_experts : 0;
    int parts = 0;
    for (int k = 0; k < 2 && u; k++) {
        const uint32_t *counts = (k ? u->prompts : u->before) + (size_t)layer * (size_t)n;
        double all = 0;
        for (int i = 0; i < n; i++) all += counts[i];
        if (!(all > 0)) continue;
        for (int i = 0; i < n; i++) share[i] = (float)(counts[i] / all) + (parts ? share[i] : 0);
        parts++;
    }
    for (int i = 0; i < n && parts > 1; i++) share[i] /= 2;
    return parts > 0;
}

static bool has_counts(const uint32_t *counts, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (counts[i]) return true;
    return false;
}
/* Tokens that the counts of earlier runs are from, in the mean of the layers. */
static double n_tokens(const struct usage_profile *u) {
    double sum = 0, layers = 0;
    for (int l = 0; l < u->c->n_layers; l++) layers += u->c->layer[l].moe;
    for (size_t i = 0; i < n_counts(u->c); i++) sum += u->before[i];
    return layers > 0 ? sum / layers / u->c->topk : 0;
}
bool usage_profile_pin(struct usage_profile *u, int settled) {
    if (!u || u->pinned) return u != NULL;
    const size_t n = n_counts(u->c);
    const bool is_from_file = has_counts(u->before, n);
    if ((!is_from_file && !has_counts(u->prompts, n)) || !(u->pinned = mem_alloc(n * sizeof *u->pinned))) return false;
    memcpy(u->pinned, is_from_file ? u->before : u->prompts, n * sizeof *u->pinned);
    u->is_kept = is_from_file && n_tokens(u) >= settled;
    return true;
}
void usage_profile_pinned(const struct usage_profile *u, int layer, int n, int32_t *out) {
    const int n_experts = u->c->n_experts;
    const uint32_t *counts = u->pinned + (size_t)layer * (size_t)n_experts;
    int n_out = 0;
    for (int x = 0; x < n_experts; x++) {
        int n_before = 0; /* experts that come before x */
        for (int i = 0; i < n_experts && n_before < n; i++)
            n_before += counts[i] > counts[x] || (counts[i] == counts[x] && i < x);
        if (n_before < n) out[n_out++] = x;
    }
}

double usage_profile_pinned_share(const struct usage_profile *u, int layer, int n) {
    if (!u) return -1;
    const int n_experts = u->c->n_experts;
    const uint32_t *counts = (u->pinned ? u->pinned : u->before) + (size_t)layer * (size_t)n_experts;
    double all = 0, hits = 0;
    for (int i = 0; i < n_experts; i++) all += counts[i];
    if (!(all > 0)) return -1;
    for (int x = 0; x < n_experts; x++) {
        int n_before = 0; /* experts that would come before x without one of its choices */
        for (int i = 0; i < n_experts && n_before < n && counts[x]; i++)
            n_before += i != x && (counts[i] > counts[x] - 1 || (counts[i] == counts[x] - 1 && i < x));
        if (n_before < n) hits += counts[x];
    }
    return hits / all > (double)n / n_experts ? hits / all : (double)n / n_experts;
}

int usage_profile_save(const struct usage_profile *u, const uint32_t *decoded, struct error *e) {
    const size_t n = n_counts(u->c), bytes = n * sizeof *decoded;
    uint64_t now = 0, layers = 0;
    for (int l = 0; l < u->c->n_layers; l++) layers += u->c->layer[l].moe;
    for (size_t i = 0; i < n; i++) now += (uint64_t)u->prompts[i] + decoded[i];
    if (!u->path || now < MIN_TOKENS * layers * (uint64_t)u->c->topk || !now) return 0;
    char *data = mem_alloc(sizeof(struct header) + bytes);
    if (!data) return error_set(e, ERR_MEMORY, "no memory for a usage profile");
    uint32_t *counts = (uint32_t *)(void *)(data + sizeof(struct header));
    for (size_t i = 0; i < n; i++) {
        const uint64_t sum = (uint64_t)u->before[i] / 2 + u->prompts[i] + decoded[i];
        counts[i] = sum < MAX_COUNT ? (uint32_t)sum : MAX_COUNT;
    }
    const struct header h = make_header(u, counts);
    memcpy(data, &h, sizeof h);
    char *slash = strrchr(u->path, '/');
    *slash = 0;
    int rc = file_mkdirs(u->path, e);
    *slash = '/';
    if (!rc) rc = file_write(u->path, data, sizeof h + bytes, e);
    mem_free(data);
    return rc;
}
