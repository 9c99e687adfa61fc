/* A session file: any bytes are either a conversation or an error that names the file. An input that begins with
 * "body:" gets the right header and checksum, so that the code after those checks is reached. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "cli/saved/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct conversation c = {0};
    struct error e = {0};
    struct buf b = {0};
    if (size > 5 && !memcmp(data, "body:", 5)) {
        buf_fmt(&b, "{\"hearth\": \"session\", \"version\": 1, \"checksum\": \"%016llx\",\n\"body\": ",
                (unsigned long long)hash64(data + 5, size - 5, 0));
        buf_add(&b, data + 5, size - 5);
        buf_str(&b, "}\n");
    } else buf_add(&b, data, size);
    struct disk_keys kept = {0};
    struct store_model model = {0};
    int rc = store_parse(b.data ? b.data : "", b.len, "fuzz", &c, &kept, &model, &e);
    if (rc && (c.n || !e.code || !strstr(e.text, "fuzz"))) abort();
    if (rc && kept.n) abort();
    mem_free(kept.keys);
    conversation_free(&c);
    buf_free(&b);
    return 0;
}
