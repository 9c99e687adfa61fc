/* Machine files. An accepted file has positive times, and is the same after writing and reading it back. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/placement/calibrate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct cost_machine m, again;
    struct error e = {0};
    struct buf b = {0};
    int rc = calibrate_parse(&m, (const char *)data, size, "f", NULL, &e);
    if (rc != e.code || (rc && !e.text[0])) abort();
    if (rc) return 0;
    if (m.n_domains < 1 || m.n_domains > COST_DOMAINS || m.n_devices >= m.n_domains) abort();
    for (int d = 0; d <= m.n_devices; d++)
        for (int k = 0; k < COST_ELEM; k++) {
            double t = cost_time(&m, d, &(struct cost_item){(enum cost_kind)k, COST_8BIT, 3, 1e6, 1e6, 1});
            if (!(t > 0) || isnan(t)) abort();
        }
    if (calibrate_write(&m, NULL, &b) || calibrate_parse(&again, b.data, b.len, "again", NULL, &e)) abort();
    buf_free(&b);
    return 0;
}
