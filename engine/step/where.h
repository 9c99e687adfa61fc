#pragma once
/* Lists the residency of every part of a model while sessions decode, with reasons; printed by --inspect and --explain. Host
 * memory (or the mapped file) always holds every weight; a device row describes copies. Pure. */
#include <stddef.h>

enum where_what { WHERE_EMBEDDING, WHERE_LAYERS, WHERE_HEAD, WHERE_EXPERTS, WHERE_ROOM };
struct where_row {
    enum where_what what;
    int device;      /* rank; -1: host memory */
    int first, last; /* layers, for WHERE_LAYERS and WHERE_EXPERTS */
    int each;        /* WHERE_EXPERTS: experts per layer */
    size_t bytes;    /* WHERE_ROOM: kept free of weights */
    char why[256];
};
enum { WHERE_ROWS = 40 };
struct where {
    int n;
    struct where_row row[WHERE_ROWS];
};
const char *where_name(enum where_what what);
void where_add(struct where *w, struct where_row row, const char *why); /* drops rows beyond WHERE_ROWS */
/* Joins the reasons for what is on devices, each once; or why nothing is. */
void where_say(const struct where *w, char *out, size_t cap);
