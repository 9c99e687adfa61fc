#include "cli/chat/dropped.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/hex.h"
#include "cli/chat/attachments.h"
#include "cli/chat/screen.h"
#include "cli/options/paths.h"

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static bool names_image(const char *path) {
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".webp"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t k = strlen(endings[i]);
        if (n > k && !strcasecmp(path + n - k, endings[i])) return true;
    }
    return false;
}

/* Reads the word at s, without its quotes, backslashes and percent signs. Returns its length in the text; 0: it is too
 * long, or its quotes do not end. */
static size_t read_word(const char *s, size_t n, bool is_url, char *out, size_t cap) {
    const char quote = *s == '\'' || *s == '"' ? *s : 0;
    size_t i = quote != 0, k = 0;
    for (; i < n && (quote ? s[i] != quote : !is_blank(s[i])); i++) {
        char c = s[i];
        if (c == '\\' && quote != '\'' && i + 1 < n) c = s[++i];
        else if (c == '%' && is_url && i + 2 < n && hex_digit(s[i + 1]) >= 0 && hex_digit(s[i + 2]) >= 0) {
            c = (char)(hex_digit(s[i + 1]) << 4 | hex_digit(s[i + 2]));
            i += 2;
        }
        if (!c || k + 1 >= cap) return 0;
        out[k++] = c;
    }
    out[k] = 0;
    if (quote) return i < n ? i + 1 : 0;
    return i;
}

/* If the word at s is the path of an image, writes the path and returns its length in the text, else 0. */
static size_t image_at(const char *s, size_t n, char *path, size_t cap) {
    static const char url[] = "file://", ends[] = ".,;:!?)";
    char word[PATHS_MAX];
    struct stat st;
    const char *begin = *s == '\'' || *s == '"' ? s + 1 : s;
    const size_t left = n - (size_t)(begin - s);
    const bool is_url = left > sizeof url && !strncasecmp(begin, url, sizeof url - 1);
    if (!left || !(is_url || *begin == '/' || (*begin == '~' && left > 1 && begin[1] == '/'))) return 0;
    size_t used = read_word(s, n, is_url, word, sizeof word);
    if (!used) return 0;
    if (begin == s) /* the question's own punctuation */
        for (size_t k; (k = strlen(word)) > 1 && !names_image(word) && strchr(ends, word[k - 1]); used--)
            word[k - 1] = 0;
    const char *local = word;
    if (is_url) local = strchr(word + sizeof url - 1, '/'); /* after the host, which may be missing */
    if (!local || !names_image(local) || paths_expand(local, path, cap) || stat(path, &st) || !S_ISREG(st.st_mode))
        return 0;
    return used;
}

/* Returns 1, 0 if the file is a text, whatever its name is, or the code of an error. */
static int attach(struct repl *r, struct chat_session *t, const char *path, struct error *e) {
    struct attachments *l = &t->attached;
    const size_t n_before = l->n;
    const int rc = attachments_add(r->app, t, path, e);
    if (rc) return rc;
    if (!l->v[n_before].images.n) return attachments_truncate(l, n_before), 0;
    const size_t n_older = attachments_drop_older(l, n_before);
    for (size_t i = n_before - n_older; i < l->n; i++)
        screen_print(r, "%s, %d x %d pixels, attached", l->v[i].name, l->v[i].width, l->v[i].height);
    return 1;
}

int dropped_attach(struct repl *r, struct chat_session *t, const char *text, size_t n, struct buf *out,
                   struct error *e) {
    const size_t n_before = t->attached.n;
    const bool reads = r->app->engine && !r->app->info->no_images;
    int rc = 0;
    for (size_t i = 0, used; i < n && rc >= 0; i += used) {
        char path[PATHS_MAX];
        used = reads && (!i || is_blank(text[i - 1])) ? image_at(text + i, n - i, path, sizeof path) : 0;
        rc = used ? attach(r, t, path, e) : 0;
        if (rc == 1) buf_str(out, strrchr(path, '/') + 1);
        else buf_add(out, text + i, used = used ? used : 1);
    }
    if (rc >= 0 && out->failed) rc = error_set(e, ERR_MEMORY, "no memory");
    if (rc < 0) attachments_truncate(&t->attached, n_before);
    return rc < 0 ? rc : 0;
}
