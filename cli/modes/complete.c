#include "cli/modes/complete.h"

#include <string.h>

#include "cli/options/model_path.h"
#include "cli/saved/store.h"
#include "cli/terminal/out.h"

static void put_name(struct buf *out, const char *name) { buf_fmt(out, "%s\n", name); }

static int put_models(struct app *a, struct buf *out, struct error *e) {
    struct model_list l;
    int rc = model_path_list(&a->opts, &l, e);
    for (size_t i = 0; !rc && i < l.n; i++) put_name(out, l.v[i].name);
    if (!rc) model_list_free(&l);
    return rc;
}

static int put_chats(struct app *a, struct buf *out, struct error *e) {
    struct store_entry *v;
    size_t n;
    int rc = store_list_entries(&v, &n, e);
    for (size_t i = 0; !rc && i < n; i++) put_name(out, v[i].name);
    if (!rc) mem_free(v);
    return rc;
}

static int put_presets(struct app *a, struct buf *out, struct error *e) {
    for (size_t i = 0; i < a->opts.n_presets; i++) put_name(out, a->opts.presets[i]);
    return 0;
}

static int put_machines(struct app *a, struct buf *out, struct error *e) {
    struct engine_params p = {0};
    struct buf text = {0};
    struct arena arena = {0};
    struct json root;
    int rc = engine_plan(&p, "list", NULL, &text, e);
    if (!rc) rc = json_parse(&arena, text.data, text.len, 0, "machines", &root, e);
    const struct json *list = rc ? NULL : json_get(&root, "machines");
    for (uint32_t i = 0; list && i < list->n; i++) {
        const struct json *name = json_get(json_at(list, i), "name");
        if (name && name->type == JSON_STRING) buf_fmt(out, "%.*s\n", (int)name->n, name->string);
    }
    arena_free(&arena);
    buf_free(&text);
    return rc;
}

int complete_run(struct app *a, struct error *e) {
    static const struct {
        const char *kind;
        int (*fn)(struct app *a, struct buf *out, struct error *e);
    } kinds[] = {{"models", put_models}, {"chats", put_chats}, {"presets", put_presets}, {"machines", put_machines}};
    struct buf b = {0};
    int rc = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !rc; i++)
        if (!strcmp(a->opts.v[OPT_COMPLETE].text, kinds[i].kind)) rc = kinds[i].fn(a, &b, e);
    if (!rc && b.len) out_write(b.data, b.len);
    buf_free(&b);
    return rc;
}
