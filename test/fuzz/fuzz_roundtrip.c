/* Any text is restored from its token ids, through a byte-level vocabulary and through a SentencePiece one with byte
 * fallback, both made here. Invalid UTF-8 becomes U+FFFD. The first byte selects the vocabulary and splits the text
 * into spans. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char added[] = "\"added_tokens\":[{\"id\":900,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
                            "{\"id\":901,\"content\":\"<|end|>\",\"special\":false,\"normalized\":true}],";

static struct tokenizer *make(bool pieces) {
    static const char *const words[] = {"a", "b", "e", "t", "ab", "ba", "abab", "th", "the", NULL};
    struct buf j = {0};
    struct error e;
    struct tokenizer *t;
    buf_str(&j, "{");
    buf_str(&j, added);
    if (pieces)
        buf_str(&j, "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
                    "\"},\"content\":\"\xE2\x96\x81\"},\"decoder\":{\"type\":\"Sequence\",\"decoders\":["
                    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" "
                    "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},");
    else
        buf_str(&j, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"
                    "\"decoder\":{\"type\":"
                    "\"ByteLevel\"},");
    buf_str(&j, "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{");
    int id = 0;
    for (int b = 0; b < 256; b++) {
        bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        static int other;
        if (b == 0) other = 0;
        if (pieces) buf_fmt(&j, "\"<0x%02X>\":%d,", b, id++);
        else if (b == '"' || b == '\\') buf_fmt(&j, "\"\\%c\":%d,", b, id++);
        else buf_fmt(&j, "\"\\u%04x\":%d,", own ? b : 256 + other, id++);
        other += !own;
    }
    if (pieces) buf_fmt(&j, "\"\xE2\x96\x81\":%d,\"\xE2\x96\x81t\":%d,", 300, 301);
    for (int i = 0; words[i]; i++)
        if (pieces || i > 3) buf_fmt(&j, "\"%s\":%d,", words[i], 400 + i);
    buf_fmt(&j, "\"h\xC3\xA9\":%d,", 500);
    j.len--;
    buf_str(&j, "},\"merges\":[\"a b\",\"b a\",\"ab ab\"]}}");
    struct file_embedded table[] = {{"tokenizer.json", (const uint8_t *)j.data, (const uint8_t *)j.data + j.len},
                                    {NULL, NULL, NULL}};
    file_embed(table);
    if (tokenizer_open(&t, "ember:", &e)) abort();
    file_embed(NULL);
    buf_free(&j);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *made[2];
    if (!made[0]) made[0] = make(false), made[1] = make(true);
    if (!size) return 0;
    const struct tokenizer *t = made[data[0] & 1];
    const char *s = (const char *)data + 1;
    size_t n = size - 1, cut = n ? (data[0] >> 1) % n : 0;
    struct text_run spans[2] = {{cut, TEXT_VALUE}, {n - cut, TEXT_TEMPLATE}};
    struct text text = {(char *)(uintptr_t)s, n, spans, 2};
    struct ids ids = {0};
    struct buf want = {0}, got = {0};
    struct error e;
    struct decoder d = {.t = t};
    if (tokenizer_encode_text(t, &text, &ids, &e)) abort();
    for (size_t i = 0; i < ids.n; i++) {
        if (decoder_add(&d, ids.data[i], &got)) abort();
        /* the output has whole characters only */
        if (utf8_valid(got.data ? got.data : "", got.len) != got.len) abort();
    }
    if (decoder_flush(&d, &got)) abort();
    for (size_t i = 0; i < n;) {
        size_t k = utf8_valid(s + i, n - i);
        /* where the pieces stand for words, a typed mark is a space like any other */
        for (size_t b = 0; b < k; b++) {
            bool mark = (data[0] & 1) && k - b >= 3 && !memcmp(s + i + b, "\xE2\x96\x81", 3);
            buf_add(&want, mark ? " " : s + i + b, 1);
            if (mark) b += 2;
        }
        i += k;
        if (i < n) buf_str(&want, "\xEF\xBF\xBD"), i += utf8_broken(s + i, n - i);
    }
    if (want.len != got.len || (want.len && memcmp(want.data, got.data, want.len))) abort();
    buf_free(&want);
    buf_free(&got);
    ids_free(&ids);
    return 0;
}
