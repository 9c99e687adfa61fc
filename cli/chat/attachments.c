/* The documents attached to the next question of a session. */
#include "cli/chat/attachments.h"

#include <string.h>

#include "cli/terminal/amount.h"
#include "cli/turn/input_paths.h"

static void attachment_free(struct attachment *f) {
    mem_free(f->name);
    mem_free(f->path);
    buf_free(&f->text);
    image_files_free(&f->images);
}

void attachments_truncate(struct attachments *l, size_t n) {
    while (l->n > n) attachment_free(&l->v[--l->n]);
}

void attachments_free(struct attachments *l) {
    attachments_truncate(l, 0);
    mem_free(l->v);
    *l = (struct attachments){0};
}

void attachments_remove(struct attachments *l, size_t i) {
    attachment_free(&l->v[i]);
    memmove(&l->v[i], &l->v[i + 1], (--l->n - i) * sizeof *l->v);
}

static bool is_read_again(const struct attachments *l, size_t i, size_t from) {
    const struct attachment *old = &l->v[i];
    for (size_t k = from; k < l->n; k++)
        if (old->path ? l->v[k].path && !strcmp(old->path, l->v[k].path) : !strcmp(old->name, l->v[k].name))
            return true;
    return false;
}

size_t attachments_drop_older(struct attachments *l, size_t n) {
    size_t dropped = 0;
    for (size_t i = 0; i < n - dropped;) {
        if (is_read_again(l, i, n - dropped)) attachments_remove(l, i), dropped++;
        else i++;
    }
    return dropped;
}

int attachments_put(const struct attachments *l, struct buf *out, struct image_files *images) {
    for (size_t i = 0; i < l->n; i++) {
        if (image_files_copy(images, &l->v[i].images, out->len)) return ERR_MEMORY;
        buf_add(out, l->v[i].text.data ? l->v[i].text.data : "", l->v[i].text.len);
    }
    return out->failed ? ERR_MEMORY : 0;
}

/* Finds the size of an attached image, or why the model cannot read it. */
static int measure_image(struct app *a, struct attachment *f, struct error *e) {
    struct engine_image *image = NULL;
    if (!f->images.n || !a->engine) return 0;
    const struct image_file *file = &f->images.v[0];
    TRY(engine_image_open(a->engine, file->bytes.data, file->bytes.len, file->name, &image, e));
    const struct engine_image_info i = engine_image_info(image);
    f->width = i.width, f->height = i.height, f->tokens = i.tokens;
    engine_image_close(&image);
    return 0;
}

static int restore_images(struct attachments *l, const struct image_files *images) {
    for (size_t i = 0; i < images->n; i++) {
        const struct image_file *f = &images->v[i];
        struct attachment a = {.name = mem_strdup(f->name), .bytes = f->bytes.len};
        if (!a.name || image_files_add(&a.images, 0, f->name, f->bytes.data, f->bytes.len) ||
            mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) {
            attachment_free(&a);
            return ERR_MEMORY;
        }
        l->v[l->n++] = a;
    }
    return 0;
}

int attachments_restore(struct attachments *l, const struct message *question) {
    const char *s = question->text.data ? question->text.data : "", *name, *end;
    const size_t n_before = l->n;
    size_t n;
    if (restore_images(l, &question->images)) {
        attachments_truncate(l, n_before);
        return -1;
    }
    for (; (end = conversation_document_end(s, &name, &n)); s = end) {
        struct attachment a = {.bytes = n};
        a.name = mem_strndup(name, strcspn(name, "\""));
        if (!a.name || buf_add(&a.text, s, (size_t)(end - s)) || mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) {
            attachment_free(&a);
            attachments_truncate(l, n_before);
            return -1;
        }
        l->v[l->n++] = a;
    }
    return (int)(l->n - n_before);
}

size_t attachments_bytes(const struct attachments *l) {
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) n += l->v[i].bytes;
    return n;
}

static int add_document(struct app *app, struct attachments *l, const struct input_path *f, struct error *e) {
    struct attachment a = {.name = mem_strdup(f->name), .path = mem_strdup(f->path)};
    int rc = a.name && a.path && !mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)
                 ? input_document(f, &a.text, &a.images, &a.bytes, e)
                 : error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = measure_image(app, &a, e);
    if (rc) attachment_free(&a);
    else l->v[l->n++] = a;
    return rc;
}

/* Counts the tokens of the documents alone, with the tokenizer of this process. The built-in model's prompts leave
 * documents out. */
static size_t count_documents(struct app *a, const struct attachments *l) {
    struct buf text = {0};
    struct ids ids = {0};
    struct image_files images = {0};
    attachments_put(l, &text, &images);
    image_files_free(&images);
    size_t n =
        a->tokenizer && !text.failed && !tokenizer_encode(a->tokenizer, text.data, text.len, TEXT_VALUE, &ids, NULL)
            ? ids.n
            : 0;
    for (size_t i = 0; i < l->n; i++) n += (size_t)l->v[i].tokens;
    ids_free(&ids);
    buf_free(&text);
    return n;
}

/* Counts the tokens of the conversation with the documents. False if the engine cannot count them. */
static bool count_with_documents(struct app *a, const struct chat_session *t, size_t *n) {
    struct conversation c = {.messages = mem_alloc((t->conv.n + 1) * sizeof *c.messages), .n = t->conv.n + 1};
    struct prompt p = {0};
    struct message *last = c.messages ? &c.messages[t->conv.n] : NULL;
    bool known = false;
    if (!last || !a->backend->count_tokens) goto out;
    if (t->conv.n) memcpy(c.messages, t->conv.messages, t->conv.n * sizeof *c.messages);
    *last = (struct message){.role = ROLE_USER};
    if (!attachments_put(&t->attached, &last->text, &last->images) &&
        !prompt_make(a, &c, prompt_think_option(&a->opts), &p, NULL))
        known = !a->backend->count_tokens(a, &p, n, NULL);
    buf_free(&last->text);
    image_files_free(&last->images);
    prompt_free(&p);
out:
    mem_free(c.messages);
    return known;
}

/* Refuses documents that leave no room for a question. what names them. */
static int check_fits(struct app *a, const struct chat_session *t, const char *what, size_t bytes, struct error *e) {
    enum { LONG_TOKEN = 32 }; /* bytes; a text of longer tokens on average is not counted exactly */
    char size[32];
    size_t n = 0;
    const int context = a->info->context;
    amount_bytes(bytes, size, sizeof size);
    if (!context) return 0;
    size_t text = 0; /* bytes of documents; those of images say nothing */
    for (size_t i = 0; i < t->attached.n; i++) text += t->attached.v[i].images.n ? 0 : t->attached.v[i].bytes;
    if (text / LONG_TOKEN > (size_t)context)
        return error_set(e, ERR_CONTEXT, "%.200s: %s is more than the context of %d tokens holds; nothing was attached",
                         what, size, context);
    if (!count_with_documents(a, t, &n)) return 0;
    size_t alone = n < (size_t)context ? count_documents(a, &t->attached) : 0;
    if (alone > n) n = alone;
    if (n < (size_t)context) return 0;
    return error_set(
        e, ERR_CONTEXT,
        "%.200s: with these %s the prompt would be %zu tokens; this model's context is %d; nothing was attached", what,
        size, n, context);
}

int attachments_add(struct app *a, struct chat_session *t, const char *words, struct error *e) {
    struct attachments *l = &t->attached;
    struct input_paths files = {0};
    size_t n_before = l->n, bytes_before = attachments_bytes(l);
    int rc = input_paths_add_words(&files, words, e);
    for (size_t i = 0; i < files.n && !rc; i++) rc = add_document(a, l, &files.v[i], e);
    if (!rc) rc = check_fits(a, t, words, attachments_bytes(l) - bytes_before, e);
    if (rc) attachments_truncate(l, n_before);
    else input_paths_note_skipped(&files);
    input_paths_free(&files);
    return rc;
}
