#pragma once
/* Lists the residency of every part of a model while sessions decode, with reasons; printed by --inspect and --explain.
 * Host memory (or the mapped file) always holds every weight; a device row describes copies. Pure. */
#include <stdbool.h>
#include <stddef.h>

enum placement_item { PLACED_EMBEDDING, PLACED_LAYERS, PLACED_HEAD, PLACED_EXPERTS, PLACED_RESERVE };
struct placement_row {
    enum placement_item item;
    int device;      /* rank; -1: host memory */
    int first, last; /* layers, for PLACED_LAYERS and PLACED_EXPERTS */
    int per_layer;   /* PLACED_EXPERTS: experts per layer */
    bool is_cached;  /* PLACED_EXPERTS: in a pool, evictable by score; else resident */
    bool is_pinned;  /* PLACED_EXPERTS: those of the usage profile, for the life of the process */
    bool is_sent;    /* PLACED_EXPERTS: in a pool that is sent what it lacks */
    /* PLACED_EXPERTS: expected share of the routers' choices in `layers` that they serve; by the usage profile, if
     * there is one */
    double choices;
    size_t bytes; /* PLACED_RESERVE: kept free of weights */
    char why[256];
};
enum { PLACEMENT_REPORT_ROWS = 40 };
struct placement_report {
    int n;
    struct placement_row row[PLACEMENT_REPORT_ROWS];
};
const char *placement_report_name(enum placement_item what);
/* drops rows beyond PLACEMENT_REPORT_ROWS */
void placement_report_add(struct placement_report *w, struct placement_row row, const char *why);
/* Joins the reasons for what is on devices, each once; or why nothing is. */
void placement_report_reasons(const struct placement_report *w, char *out, size_t cap);
