#include "cli/hub/hub_preview.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/gguf_file.h"
#include "cli/terminal/progress.h"
#include "cli/turn/engine_client_local.h"
#include "cli/turn/gpus.h"

/* A folder holds links to the settings, and of each file of weights its header in a sparse file of the full size. */
enum { FIRST_BYTES = 128 << 10, FIRST_BYTES_OF_FEW = 1 << 20, MAX_HEADER = 256 << 20, BATCH = 32 };

struct preview {
    struct hub *hub;
    const struct hub_listing *listing;
    const char *dir;
    double done, total; /* files */
};

static bool is_gguf(const char *path) {
    const size_t n = strlen(path);
    return n > 5 && !strcmp(path + n - 5, ".gguf");
}
/* Path of the file in the folder. GGUF files go to the top level, others keep their path, which an index may name. */
static int place_of(const struct preview *p, const struct hub_file *f, char out[PATHS_MAX], struct error *e) {
    const char *slash = strrchr(f->path, '/');
    TRY(file_join(out, PATHS_MAX, p->dir, slash && is_gguf(f->path) ? slash + 1 : f->path, e));
    char *name = strrchr(out, '/');
    *name = 0;
    const int rc = file_mkdirs(out, e);
    *name = '/';
    return rc;
}

static void empty_folder(const char *dir);
static int remove_entry(void *ctx, const char *name) {
    char path[PATHS_MAX];
    struct stat st;
    if (file_join(path, sizeof path, ctx, name, NULL) || lstat(path, &st)) return 0;
    if (S_ISDIR(st.st_mode)) empty_folder(path), rmdir(path);
    else unlink(path);
    return 0;
}
static void empty_folder(const char *dir) { file_list(dir, remove_entry, (void *)dir, NULL); }

static int write_sparse(const struct preview *p, const struct hub_file *f, const struct buf *data, struct error *e) {
    char path[PATHS_MAX];
    int rc = place_of(p, f, path, e);
    if (rc) return rc;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    rc = fd < 0 ? -errno : data->len ? file_write_all(fd, data->data, data->len) : 0;
    if (!rc && ftruncate(fd, (off_t)f->size)) rc = -errno;
    if (fd >= 0) close(fd);
    return rc ? error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(-rc)) : 0;
}

/* Whether the first n bytes of a GGUF file hold its whole header: then the first tensor begins within them. */
static bool has_gguf_header(const struct preview *p, const struct hub_file *f, size_t n) {
    char path[PATHS_MAX];
    struct file_map map;
    struct arena arena = {0};
    struct gguf g;
    if (place_of(p, f, path, NULL) || file_map(&map, path, NULL)) return false;
    bool whole = !gguf_parse(&g, &arena, map.data, map.size, "header", &(struct error){0});
    if (whole) whole = g.n_tensors ? g.tensors[0].offset <= n : n >= f->size; /* the first part may have no tensors */
    arena_free(&arena);
    file_unmap(&map);
    return whole;
}

/* Returns how many bytes of the file are needed; 0: those that there are suffice. */
static uint64_t bytes_needed(const struct preview *p, const struct hub_file *f, const struct buf *data) {
    uint64_t need = 0, n = 0;
    if (data->len >= f->size || data->len >= MAX_HEADER) return 0;
    if (is_gguf(f->path)) {
        if (data->len >= 4 && !memcmp(data->data, "GGUF", 4) && !has_gguf_header(p, f, data->len))
            need = 8 * (uint64_t)data->len;
    } else if (data->len >= sizeof n) {
        memcpy(&n, data->data, sizeof n); /* little-endian, as the machine */
        if (n <= MAX_HEADER && n + sizeof n > data->len) need = n + sizeof n;
    }
    if (need > MAX_HEADER) need = MAX_HEADER;
    return need > f->size ? f->size : need;
}

static int set_request(const struct preview *p, const struct hub_file *f, uint64_t n, struct hub_request *r,
                       struct error *e) {
    char prefix[300];
    snprintf(prefix, sizeof prefix, "/%s/resolve/%s/", p->listing->repo, p->listing->commit);
    *r = (struct hub_request){.what = f->path, .size = n};
    return hub_client_url(p->hub, r->url, prefix, f->path, e);
}

/* Fetches the headers of up to BATCH files at a time, and then more of those that are longer. */
static int fetch_batch(struct preview *p, const struct hub_file *const *files, size_t n, struct error *e) {
    struct hub_request *r = mem_calloc(n, sizeof *r), *list[BATCH];
    struct hub_memory *m = mem_calloc(n, sizeof *m);
    int rc = r && m ? 0 : error_set(e, ERR_MEMORY, "no memory");
    for (size_t i = 0; i < n && !rc; i++) {
        const uint64_t first = p->total > HUB_AT_ONCE ? FIRST_BYTES : FIRST_BYTES_OF_FEW;
        rc = set_request(p, files[i], files[i]->size < first ? files[i]->size : first, &r[i], e);
        m[i] = (struct hub_memory){.most = MAX_HEADER, .what = files[i]->path};
        r[i].sink = &hub_memory_sink;
        r[i].ctx = &m[i];
        list[i] = &r[i];
    }
    if (!rc) rc = hub_client_run(p->hub, list, n, NULL, NULL, e);
    for (size_t i = 0; i < n && !rc; i++) {
        uint64_t need;
        while (!(rc = write_sparse(p, files[i], &m[i].data, e)) && (need = bytes_needed(p, files[i], &m[i].data))) {
            buf_free(&m[i].data);
            rc = set_request(p, files[i], need, &r[i], e);
            if (!rc) rc = hub_client_get(p->hub, &r[i], MAX_HEADER, &m[i].data, e);
            if (rc) break;
        }
        progress_update("reading the headers", (p->done + (double)i) / p->total, -1);
    }
    for (size_t i = 0; i < n && m; i++) buf_free(&m[i].data);
    p->done += (double)n;
    mem_free(r);
    mem_free(m);
    return rc;
}

static int link_settings(const struct preview *p, const struct hub_store *s, const struct hub_set *settings,
                         struct error *e) {
    char path[PATHS_MAX], blob[PATHS_MAX];
    for (size_t i = 0; i < settings->n; i++) {
        TRY(place_of(p, settings->v[i], path, e));
        if ((size_t)snprintf(blob, sizeof blob, "%s/blobs/%s", s->dir, settings->v[i]->oid) >= sizeof blob ||
            symlink(blob, path))
            return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    }
    return 0;
}

/* Takes the folder's path out of a text: it names a file of the repository then. */
static void drop_folder(const char *dir, char *text) {
    const size_t n = strlen(dir);
    for (char *at; (at = strstr(text, dir)) != NULL;)
        memmove(at, at + n + (at[n] == '/'), strlen(at + n + (at[n] == '/')) + 1);
}

static int inspect_folder(struct app *a, const struct preview *p, const struct hub_set *weights, struct buf *text,
                          struct error *e) {
    struct engine_params params;
    char file[PATHS_MAX];
    const bool takes_file = is_gguf(weights->v[0]->path);
    int rc = takes_file ? place_of(p, weights->v[0], file, e) : 0;
    if (rc) return rc;
    engine_client_local_params(a, &params);
    params.dir = takes_file ? file : p->dir;
    if (!params.gpus) params.gpus = gpus_by_default(a);
    return engine_inspect(&params, text, e);
}

int hub_preview(struct app *a, struct hub *h, const struct hub_listing *l, const struct hub_store *s,
                const struct hub_set *settings, const struct hub_set *weights, struct buf *text, struct arena *arena,
                struct json *root, struct error *e) {
    char dir[PATHS_MAX], name[300];
    struct preview p = {.hub = h, .listing = l, .dir = dir, .total = (double)weights->n};
    const char *slash = strchr(l->repo, '/');
    snprintf(name, sizeof name, "pull--%.*s--%s", (int)(slash - l->repo), l->repo, slash + 1);
    int rc = paths_get(PATHS_CACHE, name, dir, sizeof dir) ? error_set(e, ERR_RUNTIME, "no home directory") : 0;
    if (!rc) rc = file_mkdirs(dir, e);
    if (rc) return rc;
    empty_folder(dir); /* left by an interrupted run; the lock excludes other processes */
    rc = link_settings(&p, s, settings, e);
    progress_begin("reading the headers");
    for (size_t i = 0; i < weights->n && !rc; i += BATCH)
        rc = fetch_batch(&p, weights->v + i, weights->n - i < BATCH ? weights->n - i : BATCH, e);
    if (!rc && (rc = inspect_folder(a, &p, weights, text, e))) drop_folder(dir, e->text);
    if (!rc) {
        drop_folder(dir, text->data); /* why no images are read */
        text->len = strlen(text->data);
    }
    if (!rc) rc = json_parse(arena, text->data, text->len, 0, "inspection", root, e);
    progress_clear();
    empty_folder(dir);
    rmdir(dir);
    return rc;
}
