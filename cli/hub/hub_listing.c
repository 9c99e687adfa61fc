#include "cli/hub/hub_listing.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "cli/options/hub_name.h"

enum { MAX_PAGES = 100, MAX_FILES = 8000, MAX_PATH = 1000, MAX_NAME = 255, PAGE_BYTES = 32 << 20 };
static const uint64_t MAX_SIZE = 1ull << 50; /* bytes of a file */

static bool is_hex(const struct json *j, uint32_t n) {
    if (!j || j->type != JSON_STRING || j->n != n) return false;
    for (uint32_t i = 0; i < n; i++)
        if (!strchr("0123456789abcdef", j->string[i]) || !j->string[i]) return false;
    return true;
}

/* Whether a path stays in its folder: no absolute path, no empty part, "." or "..", no backslash, no control byte. */
static bool is_safe(const char *path, size_t n) {
    if (!n || n > MAX_PATH) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < ' ' || path[i] == 127 || path[i] == '\\') return false;
    for (size_t from = 0; from <= n;) {
        const char *slash = memchr(path + from, '/', n - from);
        const size_t k = slash ? (size_t)(slash - path) - from : n - from;
        if (!k || k > MAX_NAME || (k <= 2 && !strncmp(path + from, "..", k))) return false;
        from += k + 1;
    }
    return true;
}

static bool ends_with(const struct json *path, const char *end) {
    const size_t k = strlen(end);
    return path->n >= k && !memcmp(path->string + path->n - k, end, k);
}
/* Names of files that hearth may read, wherever they are. */
static bool is_wanted(const struct json *path) {
    static const char *const ends[] = {".gguf", ".safetensors", ".json", ".jinja", ".model"};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(path, ends[i])) return true;
    return false;
}

static int add_entry(struct hub_listing *l, const struct json *it, struct error *e) {
    const struct json *path = json_get(it, "path"), *lfs = json_get(it, "lfs"),
                      *oid = lfs && lfs->type == JSON_OBJECT ? json_get(lfs, "oid") : json_get(it, "oid");
    const bool is_large = lfs && lfs->type == JSON_OBJECT;
    const int64_t size = json_int(is_large && json_get(lfs, "size") ? json_get(lfs, "size") : json_get(it, "size"), -1);
    if (!json_is(json_get(it, "type"), "file") || !path || path->type != JSON_STRING || !is_wanted(path)) return 0;
    if (!is_safe(path->string, path->n))
        return error_set(e, ERR_RUNTIME, "%s: the server lists a file whose name leads out of its folder: %.*s",
                         l->repo, (int)(path->n < 200 ? path->n : 200), path->string);
    if (size < 0 || (uint64_t)size > MAX_SIZE || !is_hex(oid, is_large ? 64 : 40))
        return error_set(e, ERR_RUNTIME, "%s: the server lists %.*s without a valid size and checksum", l->repo,
                         (int)(path->n < 200 ? path->n : 200), path->string);
    if (l->n >= MAX_FILES) return error_set(e, ERR_RUNTIME, "%s: more than %d files", l->repo, MAX_FILES);
    char *copy = arena_strndup(&l->arena, path->string, path->n);
    if (!copy || mem_grow(&l->files, &l->cap, l->n + 1, sizeof *l->files))
        return error_set(e, ERR_MEMORY, "no memory for the list of files");
    struct hub_file *f = &l->files[l->n];
    *f = (struct hub_file){.path = copy, .size = (uint64_t)size, .is_large = is_large};
    snprintf(f->oid, sizeof f->oid, "%.*s", (int)oid->n, oid->string);
    if (hub_listing_find(l, copy)) return error_set(e, ERR_RUNTIME, "%s: the server lists %s twice", l->repo, copy);
    l->n++;
    return 0;
}

/* Fetches a JSON answer; the tree is in *arena and needs *body. */
static int get_json(struct hub *h, struct hub_request *r, struct buf *body, struct arena *arena, struct json *out,
                    struct error *e) {
    int rc = hub_client_get(h, r, PAGE_BYTES, body, e);
    if (!rc && json_parse(arena, body->data ? body->data : "", body->len, 0, "answer", out, e))
        rc = error_set(e, ERR_RUNTIME, "%s: %.200s is no hub: its answer is not JSON", r->what, h->endpoint);
    return rc;
}

static int fetch_commit(struct hub *h, struct hub_listing *l, struct hub_request *r, struct error *e) {
    struct buf body = {0};
    struct arena arena = {0};
    struct json j;
    char prefix[300];
    snprintf(prefix, sizeof prefix, "/api/models/%s/revision/", l->repo);
    int rc = hub_client_url(h, r->url, prefix, "main", e);
    if (!rc) rc = get_json(h, r, &body, &arena, &j, e);
    if (!rc && !is_hex(json_get(&j, "sha"), 40))
        rc = error_set(e, ERR_RUNTIME, "%s: %.200s names no commit of the branch main", l->repo, h->endpoint);
    if (!rc) snprintf(l->commit, sizeof l->commit, "%.40s", json_get(&j, "sha")->string);
    arena_free(&arena);
    buf_free(&body);
    return rc;
}

static int add_page(struct hub *h, struct hub_listing *l, struct hub_request *r, struct error *e) {
    struct buf body = {0};
    struct arena arena = {0};
    struct json j;
    int rc = get_json(h, r, &body, &arena, &j, e);
    if (!rc && j.type != JSON_ARRAY) rc = error_set(e, ERR_RUNTIME, "%s: the server's list is no list", l->repo);
    for (uint32_t i = 0; !rc && i < j.n; i++) rc = add_entry(l, &j.items[i], e);
    arena_free(&arena);
    buf_free(&body);
    return rc;
}

/* Writes the address of the next page, at the endpoint also when a mirror names the host that it mirrors. */
static int next_page(const struct hub *h, const struct hub_listing *l, struct hub_request *r, struct error *e) {
    const char *path = strstr(r->next, "/api/models/");
    if (!path || (size_t)snprintf(r->url, sizeof r->url, "%s%s", h->endpoint, path) >= sizeof r->url)
        return error_set(e, ERR_RUNTIME, "%s: the server's list continues at an invalid address", l->repo);
    return 0;
}

int hub_listing_fetch(struct hub *h, const char *repo, struct hub_listing *l, struct error *e) {
    struct hub_request *r = mem_calloc(1, sizeof *r);
    char prefix[300];
    *l = (struct hub_listing){0};
    if (!r) return error_set(e, ERR_MEMORY, "no memory");
    snprintf(l->repo, sizeof l->repo, "%s", repo);
    snprintf(h->repo, sizeof h->repo, "%s", repo);
    r->what = l->repo;
    int rc = fetch_commit(h, l, r, e);
    snprintf(prefix, sizeof prefix, "/api/models/%s/tree/%s?recursive=true", repo, l->commit);
    if (!rc) rc = hub_client_url(h, r->url, prefix, "", e);
    for (int page = 0; !rc; page++) {
        if (page == MAX_PAGES) rc = error_set(e, ERR_RUNTIME, "%s: the server's list has no end", repo);
        if (!rc) rc = add_page(h, l, r, e);
        if (rc || !*r->next) break;
        rc = next_page(h, l, r, e);
    }
    mem_free(r);
    return rc;
}

void hub_listing_free(struct hub_listing *l) {
    mem_free(l->files);
    arena_free(&l->arena);
    *l = (struct hub_listing){0};
}

const struct hub_file *hub_listing_find(const struct hub_listing *l, const char *path) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->files[i].path, path)) return &l->files[i];
    return NULL;
}
