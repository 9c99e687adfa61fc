#pragma once
/* Where the parts of a model lie while sessions answer, and why there: one list. --inspect prints it, --explain its reasons. Host memory (or the mapped
 * file) has every weight for ever; a row of a device is of copies there. Pure. */
#include <stddef.h>

enum where_what { WHERE_EMBEDDING, WHERE_LAYERS, WHERE_HEAD, WHERE_EXPERTS, WHERE_ROOM };
struct where_row {
    enum where_what what;
    int device;      /* rank; -1: host memory */
    int first, last; /* of WHERE_LAYERS and WHERE_EXPERTS: layers */
    int each;        /* of WHERE_EXPERTS: so many of each layer */
    size_t bytes;    /* of WHERE_ROOM: kept free of weights */
    char why[256];
};
enum { WHERE_ROWS = 40 };
struct where {
    int n;
    struct where_row row[WHERE_ROWS];
};
const char *where_name(enum where_what what);
void where_add(struct where *w, struct where_row row, const char *why); /* what there is no room for is left out */
/* The reasons for what lies on devices, each once; where nothing does, why not. */
void where_say(const struct where *w, char *out, size_t cap);
