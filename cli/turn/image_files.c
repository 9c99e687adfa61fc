#include "cli/turn/image_files.h"

#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "base/mem.h"
#include "cli/terminal/out.h"
#include "engine/engine.h"

static void image_file_free(struct image_file *f) {
    mem_free(f->name);
    buf_free(&f->bytes);
}

int image_files_add(struct image_files *l, size_t at, const char *name, const void *bytes, size_t n) {
    struct image_file f = {.at = at, .name = mem_strdup(name)};
    buf_add(&f.bytes, bytes, n);
    if (!f.name || f.bytes.failed || mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) {
        image_file_free(&f);
        return ERR_MEMORY;
    }
    l->v[l->n++] = f;
    return 0;
}

int image_files_copy(struct image_files *l, const struct image_files *from, size_t at) {
    const size_t n_before = l->n;
    for (size_t i = 0; i < from->n; i++) {
        const struct image_file *f = &from->v[i];
        if (!image_files_add(l, at + f->at, f->name, f->bytes.data, f->bytes.len)) continue;
        image_files_truncate(l, n_before);
        return ERR_MEMORY;
    }
    return 0;
}

void image_files_remove(struct image_files *l, size_t i) {
    image_file_free(&l->v[i]);
    memmove(&l->v[i], &l->v[i + 1], (--l->n - i) * sizeof *l->v);
}
void image_files_truncate(struct image_files *l, size_t n) {
    while (l->n > n) image_file_free(&l->v[--l->n]);
}
void image_files_free(struct image_files *l) {
    image_files_truncate(l, 0);
    mem_free(l->v);
    *l = (struct image_files){0};
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_part(const struct image_file *f, bool is_request, struct buf *out) {
    const char *kind = engine_image_kind(f->bytes.data, f->bytes.len);
    if (is_request) {
        buf_fmt(out, "{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/%s;base64,",
                !kind                   ? "png"
                : !strcmp(kind, "JPEG") ? "jpeg"
                : !strcmp(kind, "WebP") ? "webp"
                                        : "png");
        base64_put(out, f->bytes.data, f->bytes.len);
        buf_str(out, "\"}}");
        return;
    }
    buf_str(out, "{\"type\": \"image\", \"name\": ");
    out_json_string(out, f->name, strlen(f->name));
    buf_str(out, ", \"data\": \"");
    base64_put(out, f->bytes.data, f->bytes.len);
    buf_str(out, "\"}");
}

void image_files_put_parts(const struct image_files *l, const struct buf *text, bool is_request, struct buf *out) {
    size_t at = 0;
    bool any = false;
    buf_char(out, '[');
    for (size_t i = 0; i <= l->n; i++) {
        const size_t end = i < l->n ? l->v[i].at : text->len;
        if (end > at) {
            buf_str(out, any ? ", {\"type\": \"text\", \"text\": " : "{\"type\": \"text\", \"text\": ");
            out_json_string(out, text->data + at, end - at);
            buf_char(out, '}');
            any = true;
        }
        if (i == l->n) break;
        if (any) buf_str(out, ", ");
        put_part(&l->v[i], is_request, out);
        any = true;
        at = end;
    }
    buf_char(out, ']');
}

void image_files_put_saved(const struct image_files *l, struct buf *out) {
    buf_char(out, '[');
    for (size_t i = 0; i < l->n; i++) {
        buf_fmt(out, "%s{\"at\": %zu, \"name\": ", i ? ", " : "", l->v[i].at);
        out_json_string(out, l->v[i].name, strlen(l->v[i].name));
        buf_str(out, ", \"data\": \"");
        base64_put(out, l->v[i].bytes.data, l->v[i].bytes.len);
        buf_str(out, "\"}");
    }
    buf_char(out, ']');
}

int image_files_read(struct image_files *l, const struct json *list, size_t text_bytes) {
    size_t last = 0;
    if (list->type != JSON_ARRAY) return ERR_MODEL;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *m = &list->items[i], *data = json_get(m, "data");
        const int64_t at = json_int(json_get(m, "at"), -1);
        char *name = json_strdup(json_get(m, "name"));
        struct buf bytes = {0};
        int rc = at < 0 || (size_t)at < last || (size_t)at > text_bytes || !data || data->type != JSON_STRING || !name
                     ? ERR_MODEL
                     : base64_decode(data->string, data->n, &bytes);
        if (rc == ERR_RUNTIME) rc = ERR_MODEL;
        if (!rc) rc = image_files_add(l, (size_t)at, name, bytes.data ? bytes.data : "", bytes.len);
        mem_free(name);
        buf_free(&bytes);
        if (rc) return rc;
        last = (size_t)at;
    }
    return 0;
}
