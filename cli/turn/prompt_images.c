#include "cli/turn/prompt_images.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/app.h"
#include "cli/turn/engine_client.h"

enum { IMAGES_MOST = 256 };

void prompt_images_free(struct prompt_images *l) {
    while (l->n) engine_image_close(&l->v[--l->n].image);
    mem_free(l->v);
    *l = (struct prompt_images){0};
}

int prompt_images_add(struct app *a, const char *name, const struct buf *bytes, struct prompt_images *out,
                      struct error *e) {
    struct engine_image *image = NULL;
    if (out->n == IMAGES_MOST) return error_set(e, ERR_USAGE, "more than %d images in a conversation", IMAGES_MOST);
    if (mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v))
        return error_set(e, ERR_MEMORY, "%s: no memory", name);
    TRY(engine_image_open(a->engine, bytes->data ? bytes->data : "", bytes->len, name, &image, e));
    const struct engine_image_info i = engine_image_info(image);
    log_say(LOG_INFO, "%s: %d x %d pixels, %d tokens", name, i.width, i.height, i.tokens);
    out->v[out->n++] = (struct request_image){.image = image};
    out->n_tokens += i.tokens;
    if (a->info->context && out->n_tokens > a->info->context) /* each has memory for its pixels */
        return error_set(e, ERR_CONTEXT, "prompt is too long: %zu image%s of %d tokens, the context holds %d", out->n,
                         out->n == 1 ? "" : "s", out->n_tokens, a->info->context);
    return 0;
}

static int open_part(struct app *a, const struct json *part, struct prompt_images *out, struct error *e) {
    const struct json *data = json_get(part, "data"), *given = json_get(part, "name");
    struct buf bytes = {0};
    char name[96];
    if (given && given->type == JSON_STRING)
        snprintf(name, sizeof name, "%.*s", (int)(given->n < 80 ? given->n : 80), given->string);
    else snprintf(name, sizeof name, "image %zu", out->n + 1);
    if (!data || data->type != JSON_STRING || !data->n)
        return error_set(e, ERR_USAGE, "%s: an image needs its file as base64 in 'data'", name);
    int rc = base64_decode(data->string, data->n, &bytes);
    if (rc == ERR_RUNTIME) rc = error_set(e, ERR_USAGE, "%s: its data are not base64", name);
    else if (rc) error_set(e, rc, "%s: no memory", name);
    if (!rc) rc = prompt_images_add(a, name, &bytes, out, e);
    buf_free(&bytes);
    return rc;
}

/* Calls fn for each image of a conversation until it returns other than 0, and returns that. */
static int for_each_part(const struct json *conv, int (*fn)(void *ctx, const struct json *part), void *ctx) {
    const struct json *list = json_get(conv, "messages");
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const struct json *parts = json_get(&list->items[i], "content");
        for (uint32_t k = 0; parts && parts->type == JSON_ARRAY && k < parts->n; k++)
            if (json_is(json_get(&parts->items[k], "type"), "image")) TRY(fn(ctx, &parts->items[k]));
    }
    return 0;
}

static int is_part(void *ctx, const struct json *part) { return 1; }
bool prompt_images_any(const struct json *conv) { return for_each_part(conv, is_part, NULL); }

struct opening {
    struct app *app;
    bool (*may_go_on)(void *ctx);
    void *ctx;
    struct prompt_images *out;
    struct error *error;
};
static int open_next(void *ctx, const struct json *part) {
    struct opening *o = ctx;
    if (o->may_go_on && !o->may_go_on(o->ctx)) return error_set(o->error, ERR_CANCELLED, "stopped");
    if (!o->app->engine) TRY(o->app->backend->open_engine(o->app, o->error));
    return open_part(o->app, part, o->out, o->error);
}
int prompt_images_open(struct app *a, const struct json *conv, bool (*may_go_on)(void *ctx), void *ctx,
                       struct prompt_images *out, struct error *e) {
    prompt_images_free(out);
    return for_each_part(conv, open_next, &(struct opening){a, may_go_on, ctx, out, e});
}

int prompt_images_place(const struct app *a, struct prompt_images *images, struct ids *ids, struct error *e) {
    struct ids placed = {0};
    size_t n = 0, extra = 0, found = 0;
    if (!images->n) return 0;
    for (size_t i = 0; i < ids->n; i++) found += ids->data[i] == a->info->image_token;
    if (found != images->n)
        return error_set(
            e, ERR_USAGE,
            "the chat template has places for %zu of %zu images; another template may have them (--template)", found,
            images->n);
    for (size_t k = 0; k < images->n; k++) extra += (size_t)engine_image_info(images->v[k].image).tokens + 2;
    if (mem_grow(&placed.data, &placed.cap, ids->n + extra, sizeof *placed.data))
        return error_set(e, ERR_MEMORY, "no memory for a prompt of %zu tokens", ids->n + extra);
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->data[i] != a->info->image_token) placed.data[placed.n++] = ids->data[i];
        else {
            struct request_image *image = &images->v[n++];
            if (a->info->image_marks[0]) placed.data[placed.n++] = a->info->image_marks[0];
            image->at = (int)placed.n;
            engine_image_ids(image->image, placed.data + placed.n);
            placed.n += (size_t)engine_image_info(image->image).tokens;
            if (a->info->image_marks[1]) placed.data[placed.n++] = a->info->image_marks[1];
        }
    }
    ids_free(ids);
    *ids = placed;
    return 0;
}
