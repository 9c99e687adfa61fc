/* DRY as in llama.cpp (src/llama-sampler.cpp, by pi6am after koboldcpp and p-e-w). Departs from it: a breaker is found
 * in the text of the last tokens, however that text was divided into tokens. */
#include "engine/sampling/dry.h"

#include <math.h>
#include <string.h>

/* Whether a breaker ends within the last token of t [n], whose text may begin in tokens before it. */
static bool ends_breaker(const struct sampling *s, const int32_t *t, int n) {
    char text[2 * DRY_BREAKER_BYTES]; /* filled from its end */
    const size_t size = sizeof text;
    size_t at = size, last = 0, k;
    const char *bytes = s->texts.text(s->texts.ctx, t[n - 1], &last);
    if (!bytes || !last) return false;
    if (last > DRY_BREAKER_BYTES) { /* of a longer token only a breaker within it is found */
        for (const char *b = s->dry.breakers; *b; b += strlen(b) + 1)
            if (memmem(bytes, last, b, strlen(b))) return true;
        return false;
    }
    memcpy(text + (at -= last), bytes, last);
    for (int i = n - 2; i >= 0 && size - at < last + DRY_BREAKER_BYTES; i--) {
        if (!(bytes = s->texts.text(s->texts.ctx, t[i], &k))) break;
        const size_t room = last + DRY_BREAKER_BYTES - (size - at), taken = k < room ? k : room;
        memcpy(text + (at -= taken), bytes + (k - taken), taken);
    }
    for (const char *b = s->dry.breakers; *b; b += strlen(b) + 1) {
        const size_t m = strlen(b), before = size - last - at, from = before < m - 1 ? before : m - 1;
        if (memmem(text + size - last - from, last + from, b, m)) return true;
    }
    return false;
}

/* Number of tokens at the end of t [n] that no breaker touches. */
static int unbroken_tail(const struct sampling *s, const int32_t *t, int n) {
    int tail = 0;
    if (!s->texts.text || !*s->dry.breakers) return n;
    while (tail < n && !ends_breaker(s, t, n - tail)) tail++;
    return tail;
}

void dry_apply(float *logits, int vocab, const struct sampling *s, const int32_t *seen, int n,
               struct sample_item *scratch) {
    const struct dry *d = &s->dry;
    int32_t *longest = (int32_t *)scratch, *match = longest + vocab;
    const int window = d->last_n < 0 || d->last_n > n ? n : d->last_n;
    if (window <= d->allowed_length) return;
    const int32_t *end = seen + n - 1;
    const int tail = unbroken_tail(s, seen + n - window, window);
    if (tail < d->allowed_length) return;
    for (int i = 0; i < vocab; i++) longest[i] = -1;
    /* Gusfield's Z algorithm on the tokens from the last to the first: match[i] tokens before and at end[-i] are those
     * at the end of the text. */
    for (int i = 1, left = 0, right = 0; i < window; i++) {
        int k = i < right ? match[i - left] : 0;
        if (k > right - i) k = right - i;
        if (k < 0) k = 0;
        if (i + k >= right)
            while (i + k < window && end[-k] == end[-i - k]) k++;
        if (i + k > right) left = i, right = i + k;
        match[i] = k;
        const int length = k < tail ? k : tail;
        const int32_t next = end[1 - i];
        if (length >= d->allowed_length && next >= 0 && next < vocab && length > longest[next]) longest[next] = length;
    }
    for (int i = 0; i < vocab; i++)
        if (longest[i] >= 0) {
            const double penalty = (double)d->multiplier * pow((double)d->base, longest[i] - d->allowed_length);
            logits[i] -= (float)fmin(penalty, 1e30); /* a finite one: all tokens may have it */
        }
}
