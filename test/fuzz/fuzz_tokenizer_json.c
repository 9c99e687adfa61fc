/* Any bytes as tokenizer.json, as tekken.json if they name its tokens' bytes, or as SentencePiece's tokenizer.model if
 * they begin as one: either a clear error or a tokenizer that encodes. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "a b  ab\n1234 \xC3\xA9\xE4\xB8\xAD's <s>\xE2\x96\x81 \xFF\0x";
    static const char key[] = "token_bytes";
    const char *name = size && memmem(data, size, key, sizeof key - 1) ? "tekken.json" : "tokenizer.json";
    if (size && *data == '\n') name = "tokenizer.model"; /* field 1, a message */
    const struct file_embedded table[] = {{name, data, data + size}, {NULL, NULL, NULL}};
    struct tokenizer *t;
    struct error e = {0};
    file_embed(table);
    int rc = tokenizer_open(&t, "ember:", &e);
    file_embed(NULL);
    if (rc) {
        if (e.code != rc || !e.text[0] || t) abort(); /* the error must have a message */
        return 0;
    }
    for (int origin = TEXT_VALUE; origin <= TEXT_TEMPLATE; origin++) {
        struct ids ids = {0};
        struct buf out = {0};
        struct decoder d = {.t = t, .skip_special = origin == TEXT_VALUE};
        rc = tokenizer_encode(t, text, sizeof text - 1, (enum text_origin)origin, &ids, &e);
        if (rc && ids.n) abort(); /* no partial result */
        for (size_t i = 0; i < ids.n; i++)
            if (ids.data[i] < 0 || ids.data[i] >= tokenizer_n_ids(t) || decoder_add(&d, ids.data[i], &out)) abort();
        if (decoder_flush(&d, &out)) abort();
        buf_free(&out);
        ids_free(&ids);
    }
    tokenizer_close(&t);
    return 0;
}
