/* Machines as text. One key table serves reading and writing. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/placement/calibrate.h"
#include "engine/placement/datasheet.h"
#include "engine/placement/numa_cost.h"

static const char *const kinds[COST_KINDS] = {"ffn", "linear", "attention", "elem"},
                         *const formats[COST_FORMATS] = {"f32", "16bit", "8bit", "4bit"},
                         *const ways[COST_LINKS] = {"h2d", "d2h", "peer"};

enum what { WORD, NUMBER, SHARE, COUNT, COUNT_UP_TO, CURVE };
struct key {
    char name[40];
    enum what what;
    void *at;
    size_t size; /* WORD: capacity; COUNT_UP_TO: largest value, stored as double */
};
/* The i-th key of a machine, a data sheet, a domain; false past the last. */
static bool machine_key(struct cost_machine *m, int i, struct key *k) {
    const struct key keys[] = {{"name", WORD, m->name, sizeof m->name},
                               {"dram", NUMBER, &m->dram_bw, 0},
                               {"disk", NUMBER, &m->disk_bw, 0},
                               {"join", NUMBER, &m->hand_off_s, 0},
                               {"start", NUMBER, &m->prefill_start_s, 0},
                               {"cpu_chunk", COUNT, &m->cpu_chunk_rows, 0},
                               {"gpu_chunk", COUNT, &m->gpu_chunk_rows, 0},
                               {"between", NUMBER, &m->inter_node_bw, 0},
                               {"reach", SHARE, &m->reach, 0}};
    return i < (int)(sizeof keys / sizeof *keys) ? *k = keys[i], true : false;
}
static bool datasheet_key(struct machine_datasheet *b, int i, struct key *k) {
    const struct key keys[] = {{"sockets", COUNT_UP_TO, &b->sockets, 8},
                               {"channels", COUNT_UP_TO, &b->channels, 64},
                               {"cores", COUNT_UP_TO, &b->cores, 1024},
                               {"cards", COUNT_UP_TO, &b->cards, 8},
                               {"ddr", NUMBER, &b->ddr, 0},
                               {"memory", NUMBER, &b->memory, 0},
                               {"isa", WORD, b->isa, sizeof b->isa},
                               {"card", WORD, b->card, sizeof b->card},
                               {"pcie", WORD, b->pcie, sizeof b->pcie},
                               {"card.memory", NUMBER, &b->card_memory, 0},
                               {"card.bandwidth", NUMBER, &b->card_bw, 0},
                               {"card.math", WORD, b->card_math, sizeof b->card_math},
                               {"card.fp8", NUMBER, &b->card_fp8, 0},
                               {"card.bf16", NUMBER, &b->card_bf16, 0}};
    return i < (int)(sizeof keys / sizeof *keys) ? *k = keys[i], true : false;
}
static bool domain_key(struct cost_domain *d, int i, struct key *k) {
    *k = (struct key){0};
    if (i == 0) *k = (struct key){"name", WORD, d->name, sizeof d->name};
    else if (i == 1) *k = (struct key){"memory", NUMBER, &d->memory, 0};
    else if (i == 2) *k = (struct key){"alloc", NUMBER, &d->alloc, 0};
    else if ((i -= 3) < COST_KINDS)
        k->what = CURVE, k->at = &d->bw[i], snprintf(k->name, sizeof k->name, "bw.%s", kinds[i]);
    else if ((i -= COST_KINDS) < COST_KINDS)
        k->what = NUMBER, k->at = &d->latency[i], snprintf(k->name, sizeof k->name, "latency.%s", kinds[i]);
    else if ((i -= COST_KINDS) < COST_KINDS * COST_FORMATS)
        k->what = CURVE, k->at = &d->rate[i / COST_FORMATS][i % COST_FORMATS],
        snprintf(k->name, sizeof k->name, "rate.%s.%s", kinds[i / COST_FORMATS], formats[i % COST_FORMATS]);
    else if ((i -= COST_KINDS * COST_FORMATS) < COST_FORMATS)
        k->what = CURVE, k->at = &d->rate_few_rows[i], snprintf(k->name, sizeof k->name, "few.%s", formats[i]);
    else if ((i -= COST_FORMATS) < 1)
        k->what = CURVE, k->at = &d->prompt_latency, snprintf(k->name, sizeof k->name, "prompt_latency");
    else if ((i -= 1) <= COST_LINEAR)
        k->what = CURVE, k->at = &d->rate_fp8[i], snprintf(k->name, sizeof k->name, "fp8.%s", kinds[i]);
    else if ((i -= COST_LINEAR + 1) < COST_LINKS)
        k->what = NUMBER, k->at = &d->link[i].rate, snprintf(k->name, sizeof k->name, "%s", ways[i]);
    else if ((i -= COST_LINKS) < COST_LINKS)
        k->what = NUMBER, k->at = &d->link[i].latency, snprintf(k->name, sizeof k->name, "%s.latency", ways[i]);
    else return false;
    return true;
}
static bool node_key(struct cost_node *n, int i, struct key *k) {
    const struct key keys[] = {
        {"memory", NUMBER, &n->memory, 0}, {"bw", NUMBER, &n->bw_share, 0}, {"rate", NUMBER, &n->rate_share, 0}};
    return i < (int)(sizeof keys / sizeof *keys) ? *k = keys[i], true : false;
}
/* cpu, gpu0, near3 */
static void domain_prefix(const struct cost_machine *m, int d, char *out, size_t cap) {
    if (!d) snprintf(out, cap, "cpu");
    else if (d <= m->n_devices) snprintf(out, cap, "gpu%d", d - 1);
    else snprintf(out, cap, "near%d", d - 1 - m->n_devices);
}

/* --- Writing ---------------------------------------------------------------------------------- */

static void write_key(struct buf *out, const char *prefix, const struct key *k) {
    const struct cost_curve *c = k->at;
    double v = k->what == NUMBER || k->what == SHARE ? *(const double *)k->at
               : k->what == COUNT                    ? *(const int *)k->at
                                                     : 0;
    if (k->what == WORD ? !*(const char *)k->at : k->what == CURVE ? !c->n : !(v > 0)) return;
    buf_fmt(out, "%s%s%s = ", prefix, *prefix ? "." : "", k->name);
    if (k->what == WORD) buf_str(out, k->at);
    else if (k->what == CURVE)
        for (int i = 0; i < c->n; i++)
            buf_fmt(out, "%s%.9g:%.9g", i ? " " : "", (double)c->rows[i], (double)c->value[i]);
    else buf_fmt(out, "%.17g", v);
    buf_char(out, '\n');
}
int calibrate_write(const struct cost_machine *machine, const char *fingerprint, struct buf *out) {
    /* the key table is shared with the reader; not written to */
    struct cost_machine *m = (struct cost_machine *)(uintptr_t)machine;
    struct key k;
    char prefix[16];
    buf_str(out, "# A machine for hearth: rates in bytes/s and FLOP/s by rows, times in seconds.\n");
    if (fingerprint) buf_fmt(out, "fingerprint = %s\n", fingerprint);
    buf_fmt(out, "devices = %d\nnear = %d\n", m->n_devices, m->n_domains - 1 - m->n_devices);
    if (m->n_nodes) buf_fmt(out, "nodes = %d\n", m->n_nodes);
    for (int i = 0; machine_key(m, i, &k); i++) write_key(out, "", &k);
    for (int a = 0; a < m->n_nodes; a++) {
        snprintf(prefix, sizeof prefix, "node%d", a);
        for (int i = 0; node_key(&m->node[a], i, &k); i++) write_key(out, prefix, &k);
    }
    for (int d = 0; d < m->n_domains; d++) {
        domain_prefix(m, d, prefix, sizeof prefix);
        for (int i = 0; domain_key(&m->domain[d], i, &k); i++) write_key(out, prefix, &k);
    }
    return out->failed ? ERR_MEMORY : 0;
}

/* --- Reading ---------------------------------------------------------------------------------- */

static bool parse_number(const char **text, double *out) { /* positive and finite, or 0 */
    static const char units[] = "TGMKmun";
    static const double of[] = {1e12, 1e9, 1e6, 1e3, 1e-3, 1e-6, 1e-9};
    char *end;
    errno = 0;
    double v = strtod(*text, &end);
    const char *u = *end ? strchr(units, *end) : NULL;
    if (end == *text || errno || !strchr("0123456789.", **text) || (*text)[1] == 'x' || (*text)[1] == 'X') return false;
    if (u) v *= of[u - units], end++;
    if (!(v >= 0) || !(v < 1e30)) return false;
    *text = end;
    *out = v;
    return true;
}
static const char *read_value(const struct key *k, const char *text) { /* NULL, or the error */
    double v, w;
    if (k->what == WORD) {
        if (strlen(text) >= k->size) return "is too long";
        memset(k->at, 0, k->size);
        memcpy(k->at, text, strlen(text));
        return NULL;
    }
    if (k->what == CURVE) {
        struct cost_curve c = {0};
        do {
            if (!parse_number(&text, &v)) return "is not a number or a curve such as 1:0.9T 16:12T";
            w = v, v = 1;
            if (*text == ':') {
                v = w, text++;
                if (!parse_number(&text, &w)) return "has a row count without a value";
            } else if (c.n || *text) return "is not a number or a curve such as 1:0.9T 16:12T";
            if (c.n == COST_POINTS) return "has too many points";
            if (!(w > 0) || !(v > 0) || (c.n && v <= (double)c.rows[c.n - 1]))
                return "must have rising rows and values above 0";
            c.rows[c.n] = (float)v, c.value[c.n++] = (float)w;
            while (*text == ' ' || *text == '\t') text++;
        } while (*text);
        *(struct cost_curve *)k->at = c;
        return NULL;
    }
    if (!parse_number(&text, &v) || *text) return "is not a number";
    if (k->what == SHARE && !(v > 0 && v <= 1)) return "must be a share, above 0 and at most 1";
    if (k->what == COUNT_UP_TO && (v != floor(v) || v > (double)k->size))
        return "must be a whole number that a machine can have";
    if (k->what == COUNT && (v < 1 || v > 1e6 || v != floor(v))) return "must be a whole number from 1 to 1000000";
    if (k->what == COUNT) *(int *)k->at = (int)v;
    else *(double *)k->at = v;
    return NULL;
}

/* nodeN.KEY, or node.KEY for all nodes. */
static const char *read_node(struct cost_machine *m, const char *name, const char *text, int *found) {
    const char *dot = strchr(name, '.'), *bad = NULL;
    struct key k;
    for (int a = 0; a < m->n_nodes && dot && !bad; a++) {
        char prefix[16];
        size_t n = (size_t)snprintf(prefix, sizeof prefix, "node%d", a), len = (size_t)(dot - name);
        if ((len != n && len != 4) || strncmp(name, prefix, len)) continue;
        for (int i = 0; node_key(&m->node[a], i, &k) && !bad; i++)
            if (!strcmp(k.name, dot + 1)) ++*found, bad = read_value(&k, text);
    }
    return bad;
}
/* Missing shares are equal; all are normalized to a sum of 1. */
static void normalize_node_shares(struct cost_machine *m) {
    double bw = 0, rate = 0;
    for (int a = 0; a < m->n_nodes; a++) bw += m->node[a].bw_share, rate += m->node[a].rate_share;
    for (int a = 0; a < m->n_nodes; a++) {
        struct cost_node *n = &m->node[a];
        n->bw_share = bw > 0 ? fabs(bw - 1) > 1e-9 ? n->bw_share / bw : n->bw_share : 1.0 / m->n_nodes;
        n->rate_share = rate > 0 ? fabs(rate - 1) > 1e-9 ? n->rate_share / rate : n->rate_share : 1.0 / m->n_nodes;
    }
}

/* Sets a domain key by full name, or all keys with that prefix and a dot. */
static const char *read_domain(struct cost_domain *d, const char *name, const char *text, int *found) {
    struct key k;
    const char *bad = NULL;
    size_t n = strlen(name);
    for (int i = 0; domain_key(d, i, &k); i++)
        if (!strcmp(k.name, name)) return ++*found, read_value(&k, text);
    for (int i = 0; domain_key(d, i, &k) && !bad; i++)
        if (!strncmp(k.name, name, n) && k.name[n] == '.') ++*found, bad = read_value(&k, text);
    return bad;
}

struct datasheet {
    struct machine_datasheet d;
    uint32_t given_keys; /* bit i: key i was given */
};
/* Sets a data-sheet key; each may be given once. */
static const char *read_datasheet_key(struct datasheet *b, const struct key *k, int i, const char *text) {
    double rate;
    if (b->given_keys >> i & 1) return "is given twice";
    b->given_keys |= 1u << i;
    const char *bad = read_value(k, text);
    if (!bad && k->at == b->d.isa) bad = datasheet_check_isa(text);
    if (!bad && k->at == b->d.pcie) bad = datasheet_parse_pcie(text, &rate);
    return bad;
}

/* Pass 1 (counts) reads domain counts and data-sheet keys, pass 2 the rest, which overrides derived values. */
static const char *read_line(struct cost_machine *m, struct datasheet *b, char *fingerprint, const char *name,
                             const char *text, bool counts) {
    struct key k = {.what = WORD, .at = fingerprint, .size = CALIBRATE_FINGERPRINT_LEN}, of_box;
    bool devices = !strcmp(name, "devices"), near = !strcmp(name, "near"), nodes = !strcmp(name, "nodes");
    for (int i = 0; datasheet_key(&b->d, i, &of_box); i++)
        if (!strcmp(of_box.name, name)) return counts ? read_datasheet_key(b, &of_box, i, text) : NULL;
    if (counts != (devices || near || nodes)) return NULL;
    if (counts) {
        double v;
        if (nodes && (!parse_number(&text, &v) || *text || v != floor(v) || v < 2 || v > COST_NODES))
            return "is not a number of NUMA nodes: 2 to 8";
        if (nodes) return m->n_nodes = (int)v, m->inter_node_bw = NUMA_COST_INTER_NODE_BW, NULL;
        if (!parse_number(&text, &v) || *text || v != floor(v) || v > COST_DOMAINS - 1 ||
            m->n_domains + v > COST_DOMAINS)
            return "is not a number of domains that fits";
        if (devices && m->n_devices) return "is given twice";
        if (devices) m->n_devices = (int)v;
        m->n_domains += (int)v;
        return NULL;
    }
    if (!strcmp(name, "fingerprint")) return fingerprint ? read_value(&k, text) : NULL;
    for (int i = 0; machine_key(m, i, &k); i++)
        if (!strcmp(k.name, name)) return read_value(&k, text);
    const char *dot = strchr(name, '.'), *bad = NULL;
    int found = 0;
    for (int d = 0; d < m->n_domains && dot && !bad; d++) {
        char prefix[16];
        domain_prefix(m, d, prefix, sizeof prefix);
        size_t n = strlen(prefix), letters = strcspn(prefix, "0123456789"), len = (size_t)(dot - name);
        if ((len == n && !strncmp(name, prefix, n)) || (d && len == letters && !strncmp(name, prefix, letters)))
            bad = read_domain(&m->domain[d], dot + 1, text, &found);
    }
    if (!bad && !found) bad = read_node(m, name, text, &found);
    return bad ? bad : found ? NULL : "is not a machine key";
}

/* Derives values from the data sheet; explicit keys override them later. */
static int fill_from_datasheet(struct cost_machine *m, const struct datasheet *b, const char *what, struct error *e) {
    char why[420];
    if (!b->given_keys) return 0;
    if (m->n_domains > 1)
        return error_set(e, ERR_USAGE, "%s: cards already sets the number of devices; leave out devices and near",
                         what);
    if (datasheet_machine(m, &b->d, why, sizeof why)) return 0;
    return error_set(e, ERR_USAGE, "%s: %s", what, why);
}

/* Valid UTF-8 without control characters, since names are displayed. */
static bool is_text(const char *text, size_t n) {
    if (utf8_valid(text, n) != n) return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 32 && c != '\t' && c != '\n' && c != '\r') || c == 127 ||
            (c == 0xc2 && i + 1 < n && (unsigned char)text[i + 1] < 0xa0))
            return false;
    }
    return true;
}

int calibrate_parse(struct cost_machine *m, const char *text, size_t n, const char *what, char *fingerprint,
                    struct error *e) {
    struct datasheet box = {0};
    memset(m, 0, sizeof *m);
    m->n_domains = 1;
    m->cpu_chunk_rows = 1024, m->gpu_chunk_rows = 8192;
    if (fingerprint) *fingerprint = 0;
    if (!is_text(text, n)) return error_set(e, ERR_USAGE, "%s: not a text file", what);
    for (int pass = 0; pass < 2; pass++) {
        int line = 0;
        for (const char *p = text, *end = text + n; p < end;) {
            char copy[512], *name = copy, *value;
            const char *stop = memchr(p, '\n', (size_t)(end - p));
            size_t len = (size_t)((stop ? stop : end) - p);
            line++;
            if (len >= sizeof copy)
                return error_set(e, ERR_USAGE, "%s: line %d: longer than %zu bytes", what, line, sizeof copy - 1);
            memcpy(copy, p, len);
            copy[len] = 0;
            p += len + 1;
            copy[strcspn(copy, "#\r")] = 0;
            name += strspn(name, " \t");
            if (!*name) continue;
            if (!(value = strchr(name, '=')))
                return error_set(e, ERR_USAGE, "%s: line %d: '%.60s' is not key = value", what, line, name);
            char *tail = value;
            while (tail > name && (tail[-1] == ' ' || tail[-1] == '\t')) tail--;
            *tail = 0, value++;
            value += strspn(value, " \t");
            for (size_t k = strlen(value); k && (value[k - 1] == ' ' || value[k - 1] == '\t');) value[--k] = 0;
            const char *bad = read_line(m, &box, fingerprint, name, value, !pass);
            if (bad) return error_set(e, ERR_USAGE, "%s: line %d: %.60s = %.60s: %s", what, line, name, value, bad);
        }
        if (!pass && fill_from_datasheet(m, &box, what, e)) return e->code;
        for (int d = 0; d < m->n_domains && !pass; d++)
            m->domain[d].class = !d ? COST_CPU : d <= m->n_devices ? COST_GPU : COST_NDP;
    }
    normalize_node_shares(m);
    for (int d = 0; d < m->n_domains; d++) { /* without these every prediction would be 0 */
        char prefix[16];
        domain_prefix(m, d, prefix, sizeof prefix);
        for (int k = 0; k < (m->domain[d].class == COST_NDP ? COST_LINEAR : COST_ELEM); k++)
            if (!m->domain[d].bw[k].n)
                return error_set(e, ERR_USAGE, "%s: %s.bw.%s is missing", what, prefix, kinds[k]);
        for (int w = 0; w < COST_PEER && m->domain[d].class == COST_GPU; w++)
            if (!(m->domain[d].link[w].rate > 0))
                return error_set(e, ERR_USAGE, "%s: %s.%s is missing", what, prefix, ways[w]);
    }
    return 0;
}

static int refuse_name(const char *name, struct error *e) {
    struct buf all = {0};
    const char *known;
    for (int i = 0; (known = cost_preset_name(i)); i++) buf_fmt(&all, "%s%s", i ? ", " : "", known);
    for (int i = 0; (known = datasheet_preset_name(i)); i++) buf_fmt(&all, ", %s", known);
    error_set(e, ERR_USAGE, "%.200s: not a machine file and not a known machine; known: %s", name,
              all.failed ? "see --plan list" : all.data);
    buf_free(&all);
    return e->code;
}

int calibrate_read(struct cost_machine *m, const char *name, struct error *e) {
    char *text, why[420];
    size_t n;
    if (cost_preset(m, name)) return 0;
    const enum datasheet_found found = datasheet_preset(m, name, why, sizeof why);
    if (found == DATASHEET_REFUSED) return error_set(e, ERR_USAGE, "%.100s: %s", name, why);
    if (found == DATASHEET_FOUND) return 0;
    if (!file_exists(name)) return refuse_name(name, e);
    int rc = file_read(name, 1 << 20, &text, &n, e);
    if (rc) return rc;
    rc = calibrate_parse(m, text, n, name, NULL, e);
    mem_free(text);
    return rc;
}
