#include "cli/turn/prompt_file.h"

#include <string.h>

#include "cli/turn/input.h"

/* Finds the item with this name; vars->n_items if there is none. */
static size_t find_var(const struct opt_value *vars, const char *name, size_t n) {
    size_t i = 0;
    while (i < vars->n_items && (strncmp(vars->items[i], name, n) || vars->items[i][n] != '=')) i++;
    return i;
}

static bool is_name(const char *s, size_t n) {
    bool ok = n > 0;
    for (size_t i = 0; i < n; i++)
        ok &= (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9') ||
              s[i] == '_' || s[i] == '-';
    return ok;
}

/* Returns the bytes of a {{NAME}} at s, or 0; *name is its name without blanks. */
static size_t parse_place(const char *s, const char *end, const char **name, size_t *n) {
    if (end - s < 4 || memcmp(s, "{{", 2)) return 0;
    const char *at = s + 2;
    while (at < end && *at == ' ') at++;
    *name = at;
    while (at < end && *at != ' ' && *at != '}') at++;
    *n = (size_t)(at - *name);
    while (at < end && *at == ' ') at++;
    return end - at >= 2 && !memcmp(at, "}}", 2) && is_name(*name, *n) ? (size_t)(at + 2 - s) : 0;
}

int prompt_file_read(const char *path, const struct opt_value *vars, struct buf *out, struct error *e) {
    struct buf text = {0};
    const char *name;
    size_t n, place;
    bool *used = mem_calloc(vars->n_items + 1, sizeof *used);
    int rc = used ? input_file(path, &text, e) : error_set(e, ERR_MEMORY, "no memory");
    for (size_t i = 0; i < vars->n_items && !rc; i++)
        if (!is_name(vars->items[i], strcspn(vars->items[i], "=")) || !strchr(vars->items[i], '='))
            rc = error_set(e, ERR_USAGE, "--var %.100s: not of the form NAME=VALUE", vars->items[i]);
    const char *s = text.data ? text.data : "", *end = s + text.len;
    for (; s < end && !rc; s += place ? place : 1) {
        if (!(place = parse_place(s, end, &name, &n))) buf_char(out, *s);
        else {
            size_t i = find_var(vars, name, n);
            if (i == vars->n_items)
                rc = error_set(e, ERR_USAGE, "%.200s: {{%.*s}} has no value; give --var %.*s=VALUE", path, (int)n, name,
                               (int)n, name);
            else buf_str(out, vars->items[i] + n + 1), used[i] = true;
        }
    }
    for (size_t i = 0; i < vars->n_items && !rc; i++)
        if (!used[i])
            rc = error_set(e, ERR_USAGE, "--var %.100s: %.200s has no {{%.*s}}", vars->items[i], path,
                           (int)strcspn(vars->items[i], "="), vars->items[i]);
    if (!rc && out->failed) rc = error_set(e, ERR_MEMORY, "no memory");
    mem_free(used);
    buf_free(&text);
    return rc;
}
