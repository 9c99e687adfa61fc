#include "engine/draft/lookup.h"

int lookup_draft(const int32_t *tokens, int n, int most, int32_t *out, int *matched) {
    int best = 0, from = 0;
    for (int i = n - 2; i >= 0 && best < LOOKUP_MATCH; i--) {
        if (tokens[i] != tokens[n - 1]) continue;
        int k = 1;
        while (k < LOOKUP_MATCH && k <= i && tokens[i - k] == tokens[n - 1 - k]) k++;
        if (k > best) best = k, from = i + 1;
    }
    *matched = best;
    /* past the end: repeat the period */
    for (int i = 0; i < most && best; i++) out[i] = from + i < n ? tokens[from + i] : out[from + i - n];
    return best ? most : 0;
}
