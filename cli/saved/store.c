#include "cli/saved/store.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/hash.h"
#include "cli/report.h"
#include "cli/saved/saver.h"
#include "cli/saved/store_message.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/out.h"
#include "cli/terminal/sanitize.h"
#include "cli/turn/engine_client.h"

/* The head has a fixed length: the checksum covers the bytes between it and the closing brace. Version 2 has images,
 * which a hearth that knows version 1 alone would leave out when it saves the conversation again. */
enum { PLAIN_VERSION = 1, IMAGES_VERSION };
static const char session_head_format[] =
    "{\"hearth\": \"session\", \"version\": %d, \"checksum\": \"%016llx\",\n\"body\": ";
static const char session_tail[] = "}\n";
enum { HEAD_BYTES = 76, BEFORE_VERSION_BYTES = 33, BEFORE_CHECKSUM_BYTES = 49, MAX_SESSION_BYTES = 1 << 28 };

/* Returns whether a name may have a character (with its combining marks): printable, not blank, not '/'. */
static bool is_name_char(const char *s, size_t n, int width) {
    const unsigned char c = (unsigned char)*s;
    if (c < 0x80) return c > ' ' && c != '/' && c != 0x7F;
    return width > 0 && !sanitize_is_harmful((const unsigned char *)s, n) && strncmp(s, "\u3000", 3) &&
           strncmp(s, "\u00a0", 2) && strncmp(s, "\u200b", 3);
}

int store_check_name(const char *name, struct error *e) {
    size_t n = strlen(name), k;
    struct buf clean = {0};
    int width;
    bool bad = !n || n > 100 || *name == '.' || *name == '-' || out_utf8(&clean, name, n);
    buf_free(&clean);
    for (size_t i = 0; i < n && !bad; i += k) {
        k = columns_of_char(name + i, n - i, &width);
        bad |= !is_name_char(name + i, k, width);
    }
    return bad ? error_set(e, ERR_USAGE,
                           "'%.100s' is not a session name: use letters, digits and -._ (up to 100 bytes)", name)
               : 0;
}

/* Returns the path of name + ending; make: creates the directory, too. */
static int session_path(const char *name, const char *ending, bool make, char *out, struct error *e) {
    char file[160];
    snprintf(file, sizeof file, "sessions/%s%s", name, ending);
    if (make) return paths_make(PATHS_DATA, file, out, PATHS_MAX, e);
    return paths_get(PATHS_DATA, file, out, PATHS_MAX) ? error_set(e, ERR_RUNTIME, "no home directory: HOME is not set")
                                                       : 0;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int add_disk_key(struct disk_keys *disk_keys, uint64_t key) {
    for (size_t i = 0; i < disk_keys->n; i++)
        if (disk_keys->keys[i] == key) return 0;
    if (mem_grow(&disk_keys->keys, &disk_keys->cap, disk_keys->n + 1, sizeof *disk_keys->keys)) return ERR_MEMORY;
    disk_keys->keys[disk_keys->n++] = key;
    return 0;
}
static int add_disk_keys(const struct json *list, const char *what, struct disk_keys *disk_keys, struct error *e) {
    size_t n_before = disk_keys->n;
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const struct json *key = &list->items[i];
        char text[17];
        if (key->type != JSON_STRING || key->n != 16) continue;
        memcpy(text, key->string, 16);
        text[16] = 0;
        if (!add_disk_key(disk_keys, strtoull(text, NULL, 16))) continue;
        disk_keys->n = n_before;
        return error_set(e, ERR_MEMORY, "%s: no memory", what);
    }
    return 0;
}

/* Returns the version of a session, 10 for all of several digits, or 0: the bytes do not begin as one. */
static int version_of(const char *data, size_t n) {
    const char *version = data + BEFORE_VERSION_BYTES;
    if (n < BEFORE_CHECKSUM_BYTES || memcmp(data, session_head_format, BEFORE_VERSION_BYTES)) return 0;
    if (*version < '1' || *version > '9') return 0;
    return version[1] >= '0' && version[1] <= '9' ? 10 : *version - '0';
}

int store_parse(const char *data, size_t n, const char *what, struct conversation *conv, struct disk_keys *disk_keys,
                struct store_model *model, struct error *e) {
    char want[HEAD_BYTES + 1];
    size_t tail_n = sizeof session_tail - 1, n_before = conv->n;
    const int version = version_of(data, n);
    if (version > IMAGES_VERSION)
        return error_set(e, ERR_RUNTIME,
                         "%s: saved by a newer version of hearth, which can open it; the file is unchanged", what);
    if (n < HEAD_BYTES + tail_n || !version || memcmp(data + n - tail_n, session_tail, tail_n))
        return error_set(e, ERR_MODEL, "%s: not a session of this version of hearth", what);
    const char *text = data + HEAD_BYTES;
    size_t size = n - HEAD_BYTES - tail_n;
    snprintf(want, sizeof want, session_head_format, version, (unsigned long long)hash64(text, size, 0));
    if (memcmp(want, data, HEAD_BYTES)) return error_set(e, ERR_MODEL, "%s: the checksum is wrong", what);
    struct arena arena = {0};
    struct json body;
    int rc = json_parse(&arena, text, size, 0, what, &body, e);
    const struct json *list = rc ? NULL : json_get(&body, "messages");
    if (!rc && (!list || list->type != JSON_ARRAY)) rc = error_set(e, ERR_MODEL, "%s: no messages", what);
    for (uint32_t i = 0; !rc && i < list->n; i++) rc = store_message_add(&list->items[i], what, conv, e);
    if (!rc && disk_keys) rc = add_disk_keys(json_get(&body, "kept"), what, disk_keys, e);
    if (rc) conversation_truncate(conv, n_before);
    else if (model) store_model_parse(&body, model);
    arena_free(&arena);
    return rc;
}

static int add_saved_name(void *ctx, const char *file) {
    size_t n = strlen(file);
    if (n > 5 && !strcmp(file + n - 5, ".json")) buf_add(ctx, file, n - 5), buf_char(ctx, 0);
    return 0;
}
static const char *next_saved_name(void *ctx) {
    const char **next = ctx, *name = *next;
    *next += strlen(name) + 1;
    return *name ? name : NULL;
}

bool store_nearest(const char *name, char *near, size_t cap) {
    char dir[PATHS_MAX];
    struct buf names = {0};
    bool found = false;
    if (paths_get(PATHS_DATA, "sessions", dir, sizeof dir) || !file_is_dir(dir)) return false;
    if (!file_list(dir, add_saved_name, &names, &(struct error){0}) && !buf_add(&names, "\0", 2)) {
        const char *next = names.data;
        found = opt_nearest(name, next_saved_name, &next, near, cap);
    }
    buf_free(&names);
    return found;
}

static int not_saved(const char *name, const char *path, struct error *e) {
    char near[128];
    struct stat st;
    if (!lstat(path, &st)) return error_set(e, ERR_RUNTIME, "%s: no conversation, since it is not a file", path);
    if (store_nearest(name, near, sizeof near))
        return error_set(e, ERR_RUNTIME, "no saved conversation '%s'; did you mean '%s'?", name, near);
    return error_set(e, ERR_RUNTIME, "no saved conversation '%s'; hearth --list shows the saved ones", name);
}

/* Returns the first of NAME.damaged, NAME.damaged-2 and so on that does not exist. */
static int free_path(const char *name, char *out) {
    enum { MOST = 1000 };
    struct stat st;
    char ending[24] = ".damaged";
    for (int i = 2; i <= MOST; i++) {
        if (session_path(name, ending, false, out, &(struct error){0})) return ERR_RUNTIME;
        if (lstat(out, &st)) return errno == ENOENT ? 0 : ERR_RUNTIME;
        snprintf(ending, sizeof ending, ".damaged-%d", i);
    }
    return ERR_RUNTIME;
}

static int load_session(struct store *s, struct app *a, struct conversation *conv, struct error *e) {
    char path[PATHS_MAX], aside[PATHS_MAX];
    char *data;
    size_t n;
    int rc = session_path(s->name, ".json", false, path, e);
    if (!rc && !file_exists(path)) rc = not_saved(s->name, path, e);
    if (rc || (rc = file_read(path, MAX_SESSION_BYTES, &data, &n, e))) return rc;
    rc = store_parse(data, n, s->name, conv, &s->disk_keys, &s->model, e);
    mem_free(data);
    /* A kill during a call leaves it without a result, and templates and servers refuse such a conversation. */
    if (!rc && conversation_complete_calls(conv, "[no result: the chat ended before this call did]"))
        rc = error_set(e, ERR_MEMORY, "%s: no memory", s->name);
    if (!rc) store_model_note(a, s->name, &s->model), a->saved_pinned = s->model.pinned;
    if (rc != ERR_MODEL) return rc;
    e->code = ERR_RUNTIME; /* the session is bad, not the model */
    if (!free_path(s->name, aside) && !rename(path, aside))
        snprintf(e->text + strlen(e->text), sizeof e->text - strlen(e->text), "; the file was renamed to %s", aside);
    return e->code;
}

/* Reads a file that another process may replace at any time. */
static int read_unlocked(const char *name, struct conversation *conv, struct store_model *model, struct error *e) {
    char path[PATHS_MAX], *data;
    size_t n;
    int rc = store_check_name(name, e);
    if (!rc) rc = session_path(name, ".json", false, path, e);
    if (!rc) rc = file_read(path, MAX_SESSION_BYTES, &data, &n, e);
    if (rc) return rc;
    rc = store_parse(data, n, name, conv, NULL, model, e);
    mem_free(data);
    return rc;
}

int store_read(const char *name, struct conversation *conv, struct error *e) {
    return read_unlocked(name, conv, NULL, e);
}

int store_select_model(struct app *a, const char *name, struct error *e) {
    struct conversation conv = {0};
    struct store_model model = {0};
    int rc = read_unlocked(name, &conv, &model, &(struct error){0});
    conversation_free(&conv);
    return rc ? 0 : store_model_select(a, name, &model, e);
}

/* --- locking ---------------------------------------------------------------------------------- */

/* Without locks the last of two writers wins: each writes a whole conversation. */
static void note_no_locks(const char *path, int error) {
    static bool noted;
    if (!noted)
        report_note("%.*s: the file system has no locks (%s); do not open a conversation in two hearths at once",
                    (int)(strrchr(path, '/') - path), path, strerror(error));
    noted = true;
}

/* Takes a conversation's lock. ERR_CONTEXT: another process has it; callers turn that into ERR_RUNTIME. Lock files are
 * unlinked while held, so a lock counts only if the file is still the one at the path. */
static int take_lock(const char *name, int *out, struct error *e) {
    char path[PATHS_MAX];
    int rc = session_path(name, ".lock", true, path, e);
    if (rc) return rc;
    for (;;) {
        struct stat ours, there;
        int fd = -1;
        if (fault_hit(FAULT_OPEN)) errno = EIO;
        else fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB)) {
            if (file_lacks_locks(errno)) return note_no_locks(path, errno), *out = fd + 1, 0;
            bool busy = errno == EWOULDBLOCK;
            rc = busy ? error_set(e, ERR_CONTEXT, "the conversation '%s' is open in another hearth process", name)
                      : error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
            close(fd);
            return rc;
        }
        if (!fstat(fd, &ours) && !lstat(path, &there) && ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
            *out = fd + 1;
            return 0;
        }
        close(fd);
    }
}

static void release_lock(const char *name, int *lock) {
    char path[PATHS_MAX];
    if (!*lock) return;
    if (!session_path(name, ".lock", false, path, NULL)) unlink(path);
    close(*lock - 1);
    *lock = 0;
}
static void release_store_lock(struct store *s) { release_lock(s->name, &s->lock); }

void store_close(struct store *s) {
    if (s->lock) saver_wait(); /* the next owner of the lock must find the saved contents */
    release_store_lock(s);
    mem_free(s->disk_keys.keys);
    *s = (struct store){0};
}

int store_add_disk_keys(struct store *s, const struct engine_client *client, struct error *e) {
    const uint64_t *keys;
    size_t n = engine_client_disk_keys(client, &keys);
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) rc = add_disk_key(&s->disk_keys, keys[i]);
    return rc ? error_set(e, rc, "no memory") : 0;
}

/* Removes NAME.json.XXXXXX, an unfinished save, and NAME.lock, both left by a killed hearth. */
static int sweep_file(void *ctx, const char *file) {
    static const char temporary[] = ".json.", lock_end[] = ".lock";
    char path[PATHS_MAX];
    const size_t file_n = strlen(file), lock_n = sizeof lock_end - 1, ending_n = sizeof temporary - 1, random_n = 6;
    size_t n = file_n;
    struct store s = {0};
    bool is_temporary = n > ending_n + random_n && !memcmp(file + n - random_n - ending_n, temporary, ending_n) &&
                        !strchr(file + n - random_n, '.');
    if (is_temporary) n -= ending_n + random_n;
    else if (n > lock_n && !strcmp(file + n - lock_n, lock_end)) n -= lock_n;
    if (n == file_n || n >= sizeof s.name) return 0;
    snprintf(s.name, sizeof s.name, "%.*s", (int)n, file);
    /* in use, or not a session file */
    if (store_check_name(s.name, NULL) || take_lock(s.name, &s.lock, NULL)) return 0;
    if (is_temporary && !session_path(file, "", false, path, NULL)) unlink(path);
    release_store_lock(&s); /* and its file */
    return 0;
}
void store_sweep(void) {
    char dir[PATHS_MAX];
    if (!paths_get(PATHS_DATA, "sessions", dir, sizeof dir) && file_is_dir(dir)) file_list(dir, sweep_file, NULL, NULL);
}

bool store_exists(const char *name) {
    char path[PATHS_MAX];
    return !session_path(name, ".json", false, path, NULL) && file_exists(path);
}

int store_open(struct store *s, struct app *a, const char *name, enum store_mode mode, struct conversation *conv,
               struct error *e) {
    static bool warned;
    int rc = store_check_name(name, e);
    *s = (struct store){0};
    if (rc) return rc;
    snprintf(s->name, sizeof s->name, "%s", name);
    rc = take_lock(name, &s->lock, e);
    if (rc == ERR_CONTEXT) return e->code = ERR_RUNTIME;
    if (rc && mode == STORE_NEW) return error_prefix(e, "nothing can be saved");
    if (rc) {
        s->disabled = true;
        if (!warned) report_note("%s; conversations are not saved", e->text);
        warned = true;
        rc = 0;
    }
    if (mode == STORE_LOAD) rc = load_session(s, a, conv, e);
    else if (mode == STORE_NEW && store_exists(name))
        rc = error_set(e, ERR_RUNTIME, "the conversation '%s' already exists; --continue %s continues it", name, name);
    if (rc) store_close(s);
    return rc;
}

/* Makes a name of a title: ASCII letters in lower case, digits and all letters of other scripts, dashes between; "chat"
 * if there are none. */
static void make_slug(const char *title, char *out, size_t cap) {
    size_t n = 0, len = strlen(title), k;
    int width;
    for (size_t i = 0; i < len; i += k) {
        const char *s = title + i;
        k = columns_of_char(s, len - i, &width);
        bool ascii = (unsigned char)*s < 0x80,
             /* the ellipsis of a shortened title */
            dash = ascii ? !isalnum((unsigned char)*s) : !is_name_char(s, k, width) || !strncmp(s, "\u2026", 3);
        if (n + k >= cap) break;
        if (!dash && ascii && k == 1) out[n++] = (char)tolower((unsigned char)*s);
        else if (!dash) memcpy(out + n, s, k), n += k;
        else if (n && out[n - 1] != '-') out[n++] = '-';
    }
    while (n && out[n - 1] == '-') n--;
    out[n] = 0;
    if (!n) snprintf(out, cap, "chat");
}

int store_open_unnamed(struct store *s, struct app *a, const struct conversation *conv, struct error *e) {
    char base[64], name[80];
    struct buf title = {0};
    conversation_title(conv, 40, &title);
    make_slug(title.data ? title.data : "", base, sizeof base);
    buf_free(&title);
    for (int k = 1; k < 10000; k++) {
        int lock = 0, rc;
        if (k > 1) snprintf(name, sizeof name, "%s-%d", base, k);
        else snprintf(name, sizeof name, "%s", base);
        if (store_exists(name)) continue;
        rc = take_lock(name, &lock, e);
        if (rc == ERR_CONTEXT) continue; /* another hearth has just taken the name */
        /* the directory is not writable: notes that, and disables the store */
        if (rc) return store_open(s, a, name, STORE_REPLACE, NULL, e);
        if (store_exists(name)) {
            release_lock(name, &lock);
            continue;
        }
        *s = (struct store){.lock = lock};
        snprintf(s->name, sizeof s->name, "%s", name);
        return 0;
    }
    return error_set(e, ERR_RUNTIME, "there are too many conversations called '%s'; /save NAME gives it another name",
                     base);
}

/* --- deletion --------------------------------------------------------------------------------- */

/* Appends the keys of a saved conversation; a file that is damaged or of a newer version has none. ERR_RUNTIME: it
 * cannot be read; ERR_MEMORY. */
static int read_disk_keys(const char *path, const char *name, struct disk_keys *disk_keys, struct error *e) {
    struct conversation conv = {0};
    char *data;
    size_t n;
    int rc = file_read(path, MAX_SESSION_BYTES, &data, &n, e);
    if (rc) return rc;
    rc = store_parse(data, n, name, &conv, disk_keys, NULL, e);
    mem_free(data);
    conversation_free(&conv);
    return rc == ERR_MEMORY ? rc : 0;
}

struct own_keys {
    const char *name;
    struct disk_keys keys;
};
/* Drops from the keys those that the conversation in `file` has, too. */
static int drop_shared_keys(void *ctx, const char *file) {
    struct own_keys *f = ctx;
    struct disk_keys *own = &f->keys, other = {0};
    char path[PATHS_MAX];
    size_t n = strlen(file), left = 0;
    if (n < 6 || strcmp(file + n - 5, ".json") || (strlen(f->name) == n - 5 && !strncmp(file, f->name, n - 5)))
        return 0;
    /* what cannot be read shares nothing: its beginnings are then computed again */
    if (!session_path(file, "", false, path, NULL)) error_ignore(read_disk_keys(path, file, &other, NULL));
    for (size_t i = 0; i < own->n; i++) {
        size_t k = 0;
        while (k < other.n && other.keys[k] != own->keys[i]) k++;
        if (k == other.n) own->keys[left++] = own->keys[i];
    }
    own->n = left;
    mem_free(other.keys);
    return 0;
}

/* Removes from the disk cache the keys that only this conversation owns. */
static int forget_disk_cache(const char *name, const char *path, struct error *e) {
    char dir[PATHS_MAX], kv_dir[PATHS_MAX];
    struct own_keys f = {.name = name};
    int rc = read_disk_keys(path, name, &f.keys, e);
    if (!rc && f.keys.n && !paths_get(PATHS_DATA, "sessions", dir, sizeof dir))
        file_list(dir, drop_shared_keys, &f, NULL);
    if (!rc && f.keys.n && !paths_get(PATHS_CACHE, "kv", kv_dir, sizeof kv_dir))
        rc = engine_forget(kv_dir, f.keys.keys, f.keys.n, e);
    mem_free(f.keys.keys);
    return rc;
}

int store_delete(const char *name, struct error *e) {
    char path[PATHS_MAX];
    int lock = 0, rc = store_check_name(name, e);
    if (!rc) rc = session_path(name, ".json", false, path, e);
    if (!rc && !file_exists(path)) rc = not_saved(name, path, e);
    if (!rc) rc = take_lock(name, &lock, e);
    if (!rc) rc = forget_disk_cache(name, path, e);
    if (!rc) rc = file_remove(path, e);
    release_lock(name, &lock);
    return rc == ERR_CONTEXT ? (e->code = ERR_RUNTIME) : rc;
}

int store_rename(struct store *s, const char *name, struct error *e) {
    int lock = 0, rc = store_check_name(name, e);
    if (rc || s->disabled) return rc;
    if (store_exists(name)) return error_set(e, ERR_RUNTIME, "the conversation '%s' already exists", name);
    if ((rc = take_lock(name, &lock, e))) return e->code = ERR_RUNTIME;
    saver_wait();
    release_store_lock(s);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->lock = lock;
    return 0;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* Formats the file's bytes and path; all stays empty if the conversation is not saved. */
static int format_session(const struct store *s, const struct app *a, const struct conversation *conv, struct buf *all,
                          char *path, struct error *e) {
    struct buf body = {0};
    int version = PLAIN_VERSION;
    if (s->disabled || !*s->name) return 0;
    buf_char(&body, '{');
    store_model_write(a, &body);
    buf_fmt(&body, ", \"saved\": %lld,\n ", (long long)time(NULL));
    for (size_t i = 0; i < s->disk_keys.n; i++)
        buf_fmt(&body, "%s\"%016llx\"", i ? ", " : "\"kept\": [", (unsigned long long)s->disk_keys.keys[i]);
    buf_str(&body, s->disk_keys.n ? "],\n \"messages\": [" : "\"messages\": [");
    for (size_t i = 0; i < conv->n; i++) {
        const struct message *m = &conv->messages[i];
        buf_str(&body, i ? ",\n  " : "\n  ");
        conversation_message_json(m, MESSAGE_SAVED, &body);
        if (m->partial) buf_str(&body, ", \"partial\": true");
        if (m->images.n) version = IMAGES_VERSION;
        buf_char(&body, '}');
    }
    buf_str(&body, "]}");
    if (!body.failed) buf_fmt(all, session_head_format, version, (unsigned long long)hash64(body.data, body.len, 0));
    buf_add(all, body.data, body.len);
    buf_str(all, session_tail);
    int rc = body.failed || all->failed ? error_set(e, ERR_MEMORY, "no memory")
             : all->len > MAX_SESSION_BYTES
                 ? error_set(e, ERR_RUNTIME, "a conversation of %zu MB with its images; at most %d MB are saved",
                             all->len >> 20, MAX_SESSION_BYTES >> 20)
                 : session_path(s->name, ".json", true, path, e);
    buf_free(&body);
    return rc;
}

int store_check_space(const struct store *s, const struct app *a, const struct conversation *conv, struct error *e) {
    static const char spare[64 << 10]; /* for the answer */
    struct buf all = {0};
    struct file_out o;
    char path[PATHS_MAX];
    int rc = format_session(s, a, conv, &all, path, e);
    if (!rc && all.len && !(rc = file_out_open(&o, path, 0600, e))) {
        int w = file_write_all(o.fd, all.data, all.len);
        if (!w) w = file_write_all(o.fd, spare, sizeof spare);
        file_out_close(&o, false, NULL);
        if (w) rc = error_set(e, ERR_RUNTIME, "%s: cannot write: %s", path, strerror(-w));
    }
    buf_free(&all);
    return rc ? error_prefix(e, "not answered, since the conversation could not be saved") : 0;
}

int store_save(struct store *s, struct app *a, const struct conversation *conv, struct error *e) {
    struct buf all = {0};
    char path[PATHS_MAX];
    int rc = format_session(s, a, conv, &all, path, e);
    if (!rc && all.len) rc = saver_write(path, all.data, all.len, e);
    buf_free(&all);
    return rc;
}

int store_save_later(struct store *s, struct app *a, const struct conversation *conv, struct error *e) {
    struct buf all = {0};
    char path[PATHS_MAX];
    int rc = format_session(s, a, conv, &all, path, e);
    if (!rc && all.len) rc = saver_submit(path, &all, e);
    buf_free(&all);
    return rc;
}
