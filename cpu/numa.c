#include "cpu/numa.h"

#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

static void clear_topology(struct numa *n) {
    memset(n, 0, sizeof *n);
    memset(n->node_of, -1, sizeof n->node_of);
    memset(n->kernel_node, -1, sizeof n->kernel_node);
    for (int a = 0; a < NUMA_NODES; a++)
        for (int b = 0; b < NUMA_NODES; b++) n->distance[a][b] = a == b ? 10 : 20;
}

static void set_single_node(struct numa *n) {
    cpu_set_t mask;
    clear_topology(n);
    n->n_nodes = 1;
    n->kernel_node[0] = 0;
    n->memory[0] = mem_total();
    if (sched_getaffinity(0, sizeof mask, &mask)) return;
    for (int c = 0; c < NUMA_CPUS && c < CPU_SETSIZE; c++)
        if (CPU_ISSET((size_t)c, &mask)) n->node_of[c] = 0, n->cpus[0]++;
}

void numa_read(struct numa *n) {
    if (numa_available() < 0 || numa_max_node() < 1) {
        set_single_node(n);
        return;
    }
    clear_topology(n);
    /* The kernel's node numbers may have gaps; ours do not. */
    for (int k = 0; k <= numa_max_node() && n->n_nodes < NUMA_NODES; k++) {
        long long size = numa_node_size64(k, NULL);
        if (size > 0) n->kernel_node[n->n_nodes] = (int16_t)k, n->memory[n->n_nodes++] = (size_t)size;
    }
    if (n->n_nodes < 2) {
        set_single_node(n);
        return;
    }
    for (int c = 0; c < NUMA_CPUS && c < numa_num_configured_cpus(); c++)
        for (int a = 0; a < n->n_nodes; a++)
            if (numa_node_of_cpu(c) == n->kernel_node[a]) n->node_of[c] = (int16_t)a, n->cpus[a]++;
    for (int a = 0; a < n->n_nodes; a++)
        for (int b = 0; b < n->n_nodes; b++) {
            int d = numa_distance(n->kernel_node[a], n->kernel_node[b]);
            if (d > 0 && d < 256) n->distance[a][b] = (uint8_t)d;
        }
}

/* "0-31,64": assigns the CPUs to node; false on a syntax error. */
static bool parse_cpus(struct numa *n, const char *p, int node) {
    if (*p == '-' && !p[1]) return true; /* memory without CPUs */
    for (;;) {
        char *end;
        long a = strtol(p, &end, 10), b = a;
        if (end == p) return false;
        if (*end == '-') {
            p = end + 1;
            b = strtol(p, &end, 10);
            if (end == p) return false;
        }
        if (a < 0 || b < a || b >= NUMA_CPUS) return false;
        for (long c = a; c <= b; c++) {
            if (n->node_of[c] >= 0) return false;
            n->node_of[c] = (int16_t)node, n->cpus[node]++;
        }
        if (!*end) return true;
        if (*end != ',') return false;
        p = end + 1;
    }
}

static bool parse_line(struct numa *n, char *line) {
    char *hash = strchr(line, '#'), *save = NULL;
    if (hash) *hash = 0;
    char *word = strtok_r(line, " \t\r", &save);
    if (!word) return true;
    if (!strcmp(word, "node")) {
        char *size = strtok_r(NULL, " \t\r", &save), *cpus = strtok_r(NULL, " \t\r", &save), *end;
        if (!size || !cpus || strtok_r(NULL, " \t\r", &save) || n->n_nodes == NUMA_NODES) return false;
        unsigned long long mib = strtoull(size, &end, 10);
        if (*end || !mib || mib > SIZE_MAX >> 20) return false;
        n->memory[n->n_nodes] = (size_t)mib << 20;
        return parse_cpus(n, cpus, n->n_nodes++);
    }
    bool speed = !strcmp(word, "speed");
    if (speed || !strcmp(word, "distance")) {
        char *row = strtok_r(NULL, " \t\r", &save), *end;
        long a = row ? strtol(row, &end, 10) : -1;
        if (a < 0 || a >= NUMA_NODES || *end) return false;
        for (int b = 0; (word = strtok_r(NULL, " \t\r", &save)); b++) {
            long d = strtol(word, &end, 10);
            if (*end || d < (speed ? 1 : 10) || d > (speed ? 1000000 : 255) || b == NUMA_NODES) return false;
            if (speed) n->read_mbps[a][b] = (uint32_t)d;
            else n->distance[a][b] = (uint8_t)d;
        }
        return true;
    }
    return false;
}

int numa_parse(struct numa *n, const char *text, struct error *e) {
    clear_topology(n);
    for (int number = 1; *text; number++) {
        char line[1024];
        size_t len = strcspn(text, "\n");
        if (len >= sizeof line)
            return error_set(e, ERR_USAGE, "topology, line %d: longer than %zu bytes", number, sizeof line - 1);
        memcpy(line, text, len);
        line[len] = 0;
        if (!parse_line(n, line))
            return error_set(e, ERR_USAGE,
                             "topology, line %d: expected `node <MiB> <cpus>`, `distance <row> <numbers>` or `speed "
                             "<row> <numbers>`",
                             number);
        text += len + (text[len] == '\n');
    }
    return n->n_nodes ? 0 : error_set(e, ERR_USAGE, "topology: no node line found");
}

void numa_split(const struct numa *n, int inter, int unit, struct numa_part *parts) {
    int64_t units = (inter + unit - 1) / unit, total = 0, seen = 0;
    for (int a = 0; a < n->n_nodes; a++) total += n->cpus[a];
    for (int a = 0, first = 0; a < n->n_nodes; a++) {
        seen += total ? n->cpus[a] : 1;
        int64_t end = units * seen / (total ? total : n->n_nodes) * unit;
        if (end > inter || a == n->n_nodes - 1) end = inter;
        parts[a] = (struct numa_part){first, (int)end - first};
        first = (int)end;
    }
    /* The last node with CPUs takes the rest. */
    for (int a = n->n_nodes - 1; a > 0 && total && !n->cpus[a]; a--) {
        parts[a - 1].count += parts[a].count;
        parts[a] = (struct numa_part){inter, 0};
    }
}

bool numa_should_bind(const struct numa *n, size_t bytes, size_t reserve) {
    int total = 0;
    if (n->n_nodes < 2) return false;
    for (int a = 0; a < n->n_nodes; a++) total += n->cpus[a];
    for (int a = 0; a < n->n_nodes; a++) {
        double share = total ? (double)n->cpus[a] / total : 1.0 / n->n_nodes,
               room = n->memory[a] > reserve ? (double)(n->memory[a] - reserve) : 0;
        if ((double)bytes * share > room) return false;
    }
    return true;
}

void numa_threads(const int *have, int n_nodes, int n_threads, uint8_t *node) {
    int64_t total = 0, seen = 0;
    int at = 0;
    for (int a = 0; a < n_nodes; a++) total += have[a];
    for (int a = 0; a < n_nodes; a++) {
        seen += total ? have[a] : 1;
        /* rounded up: with few threads the first nodes get them */
        int64_t of = total ? total : n_nodes, end = (n_threads * seen + of - 1) / of;
        while (at < end && at < n_threads && (!total || have[a])) node[at++] = (uint8_t)a;
    }
}

int numa_bind_to(void *p, size_t size, int node, struct error *e) {
    unsigned long mask[NUMA_NODES / 64 + 1] = {0};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)p + page - 1) / page * page, end = ((uintptr_t)p + size) / page * page;
    if (node < 0 || node >= NUMA_NODES) return error_set(e, ERR_USAGE, "memory node %d does not exist", node);
    if (end <= begin) return 0;
    mask[node / 64] = 1ul << node % 64;
    if (mbind((void *)begin, end - begin, MPOL_BIND, mask, NUMA_NODES + 1, MPOL_MF_MOVE))
        return error_set(e, ERR_RUNTIME, "binding %zu MiB to memory node %d: %s", size >> 20, node, strerror(errno));
    return 0;
}

/* Fills the kernel's mask of nodes with CPUs; returns their number. */
static int cpu_node_mask(const struct numa *n, unsigned long *mask) {
    int nodes = 0;
    for (int a = 0; a < n->n_nodes; a++) {
        int k = n->kernel_node[a];
        if (!n->cpus[a] || k < 0 || k >= NUMA_NODES) continue;
        mask[k / 64] |= 1ul << k % 64;
        nodes++;
    }
    return nodes;
}
void numa_prefer(const struct numa *n, int node) {
    unsigned long mask[NUMA_NODES / 64 + 1] = {0};
    if (cpu_node_mask(n, mask) < 2) return;
    if (node >= 0) memset(mask, 0, sizeof mask), mask[n->kernel_node[node] / 64] = 1ul << n->kernel_node[node] % 64;
    /* best effort: on failure pages are only farther away */
    set_mempolicy(node < 0 ? MPOL_INTERLEAVE : MPOL_PREFERRED, mask, NUMA_NODES + 1);
}
void numa_move_to(const struct numa *n, const void *p, size_t size, int node) {
    enum { PAGES = 512 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *pages[PAGES];
    int to[PAGES], status[PAGES];
    if (n->n_nodes < 2 || node < 0 || n->kernel_node[node] < 0) return;
    for (size_t at = 0; at < size; at += PAGES * page) {
        unsigned long k = 0;
        for (; k < PAGES && at + (k + 1) * page <= size; k++)
            pages[k] = (char *)p + at + k * page, to[k] = n->kernel_node[node];
        if (k) move_pages(0, k, pages, to, status, MPOL_MF_MOVE); /* on failure pages are only farther away */
    }
}
int numa_interleave_pages(const struct numa *n, void *p, size_t size, struct error *e) {
    unsigned long mask[NUMA_NODES / 64 + 1] = {0};
    int nodes = cpu_node_mask(n, mask);
    if (nodes < 2 || !mbind(p, size, MPOL_INTERLEAVE, mask, NUMA_NODES + 1, 0)) return 0;
    return error_set(e, ERR_RUNTIME, "interleaving %zu MiB over %d memory nodes: %s", size >> 20, nodes,
                     strerror(errno));
}
int numa_bind_memory(const struct numa *n, void *p, size_t size, int node, struct error *e) {
    return n->n_nodes < 2 || n->kernel_node[node] < 0 ? 0 : numa_bind_to(p, size, n->kernel_node[node], e);
}

void numa_pin_thread(const struct numa *n, int node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (n->n_nodes < 2 || n->kernel_node[node] < 0) return;
    for (int c = 0; c < NUMA_CPUS && c < CPU_SETSIZE; c++)
        if (n->node_of[c] == node) CPU_SET((size_t)c, &set);
    /* best effort: on failure memory is only farther away */
    if (CPU_COUNT(&set)) sched_setaffinity(0, sizeof set, &set);
}
