#include "cli/options/hub_name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/gguf_file.h"

/* Bytes of a valid part of a name; 0: invalid. */
static size_t part_length(const char *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s[n]) || s[n] == '-' || s[n] == '_' || s[n] == '.') n++;
    if (!n || n > 96 || strchr(".-", s[0]) || strchr(".-", s[n - 1])) return 0;
    for (size_t i = 1; i < n; i++)
        if (s[i] == s[i - 1] && (s[i] == '-' || s[i] == '.')) return 0;
    return n;
}

bool hub_name_parse(const char *text, struct hub_name *out) {
    const size_t org = part_length(text), name = org && text[org] == '/' ? part_length(text + org + 1) : 0,
                 end = org + 1 + name;
    const char *quant = text + end + 1;
    if (!name || (text[end] && text[end] != ':')) return false;
    snprintf(out->repo, sizeof out->repo, "%.*s", (int)end, text);
    *out->quant = 0;
    if (!text[end]) return true;
    const size_t n = strlen(quant);
    if (!n || n >= sizeof out->quant) return false;
    for (size_t i = 0; i < n; i++)
        if (quant[i] < ' ' || quant[i] == 127 || strchr(":\\\"", quant[i])) return false;
    memcpy(out->quant, quant, n + 1);
    return true;
}

/* --- labels ----------------------------------------------------------------------------------- */

/* Bytes of the format that s begins with, as in "Q4_K_M", "iq3_xxs", "BF16" or "MXFP4_MOE"; 0: none. */
static size_t format_length(const char *s, size_t left) {
    static const char *const whole[] = {"BF16", "FP16", "FP32", "F16", "F32", "FP8", "MXFP4", "NVFP4"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof whole / sizeof *whole && !n; i++)
        if (left >= strlen(whole[i]) && !strncasecmp(s, whole[i], strlen(whole[i]))) n = strlen(whole[i]);
    if (!n) {
        size_t q = left && strchr("IiTt", *s) ? 1 : 0;
        if (left < q + 2 || tolower((unsigned char)s[q]) != 'q' || !isdigit((unsigned char)s[q + 1])) return 0;
        n = q + 2;
    }
    while (n < left && s[n] == '_') {
        size_t word = n + 1;
        while (word < left && isalnum((unsigned char)s[word])) word++;
        if (word == n + 1) break;
        n = word;
    }
    return n == left || strchr("-. ", s[n]) ? n : 0;
}

/* Finds the last format in a text of n bytes. */
static bool find_format(const char *s, size_t n, char *out, size_t cap) {
    for (size_t i = n; i-- > 0;) {
        if (i && !strchr("-._ ", s[i - 1])) continue;
        size_t k = format_length(s + i, n - i), from = i;
        if (!k || k >= cap) continue;
        if (i >= 3 && !strncasecmp(s + i - 3, "UD-", 3)) from -= 3;
        if ((size_t)snprintf(out, cap, "%.*s", (int)(i + k - from), s + from) >= cap) continue;
        for (char *c = out; *c; c++) *c = (char)toupper((unsigned char)*c);
        return true;
    }
    return false;
}

/* The name of a file without its folder; *n: its bytes without -00001-of-00003 and .gguf. */
static const char *stem_of(const char *path, size_t *n) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    int number, count;
    if (!gguf_split(base, &number, &count, n)) {
        *n = strlen(base);
        if (*n > 5 && !strcasecmp(base + *n - 5, ".gguf")) *n -= 5;
    }
    return base;
}

void hub_name_label(const char *path, char *out, size_t cap) {
    size_t n;
    const char *base = stem_of(path, &n);
    if (find_format(base, n, out, cap)) return;
    const char *folder = base;
    while (folder > path && (folder == base || folder[-1] != '/')) folder--;
    if (base > path && find_format(folder, (size_t)(base - 1 - folder), out, cap)) return;
    snprintf(out, cap, "%.*s", (int)n, base);
}

int hub_name_match(const char *path, const char *label, const char *wanted) {
    size_t n, k = strlen(wanted);
    const char *base = stem_of(path, &n);
    if (!strcasecmp(label, wanted) || !strcasecmp(base, wanted) || (n == k && !strncasecmp(base, wanted, n))) return 3;
    if (!strncmp(label, "UD-", 3) && !strcasecmp(label + 3, wanted)) return 2;
    return !strncasecmp(label, wanted, k);
}

bool hub_name_is_weights(const char *path) {
    int number, count;
    size_t n;
    const char *base = stem_of(path, &n);
    const size_t all = strlen(base);
    if (all <= 5 || strcmp(base + all - 5, ".gguf") || gguf_names_tower(base) || strcasestr(base, "imatrix"))
        return false;
    return !gguf_split(base, &number, &count, &n) || number == 1;
}
