/* Checks placement by memory node, on topologies other than this machine's. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/numa.h"
#include "test/kcheck/case.h"

/* Parts cover [0, inter) in order, are split only at units, and differ by at most one unit where the nodes are
 * equal. */
static void covers(const struct numa *n, int inter, int unit, bool even) {
    struct numa_part p[NUMA_NODES];
    int at = 0, least = inter, most = 0;
    begin_case("%d rows in units of %d on %d nodes", inter, unit, n->n_nodes);
    numa_split(n, inter, unit, p);
    for (int a = 0; a < n->n_nodes; a++) {
        CHECK(p[a].count >= 0);
        CHECK(p[a].count == 0 || p[a].first == at);
        CHECK(p[a].count == 0 || at % unit == 0);
        at += p[a].count;
        least = p[a].count < least ? p[a].count : least;
        most = p[a].count > most ? p[a].count : most;
        CHECK(n->cpus[a] > 0 || p[a].count == 0);
    }
    CHECK(at == inter);
    if (even) CHECK(most - least <= 2 * unit);
}

int main(void) {
    static const char eight[] = "node 1024 0-3\nnode 1024 4-7\nnode 1024 8-11\nnode 1024 12-15\n"
                                "node 1024 16-19\nnode 1024 20-23\nnode 1024 24-27\nnode 1024 28-31\n";
    struct numa n;
    struct error e = {0};
    struct numa_part p[NUMA_NODES];

    begin_case("one node");
    CHECK(!numa_parse(&n, "node 65536 0-15\n", &e) && n.n_nodes == 1 && n.cpus[0] == 16 && n.node_of[15] == 0 &&
          n.node_of[16] == -1);
    covers(&n, 2048, 128, true);
    CHECK(!numa_should_bind(&n, 1, 0)); /* one node: map the file */

    begin_case("two sockets");
    CHECK(!numa_parse(
        &n, "# two sockets\nnode 524288 0-31,64-95\nnode 524288 32-63,96-127\ndistance 0 10 32\ndistance 1 32 10\n",
        &e));
    CHECK(n.n_nodes == 2 && n.cpus[0] == 64 && n.node_of[96] == 1 && n.node_of[64] == 0 && n.distance[0][1] == 32);
    numa_split(&n, 2048, 128, p);
    CHECK(p[0].first == 0 && p[0].count == 1024 && p[1].first == 1024 && p[1].count == 1024);
    CHECK(numa_should_bind(&n, (size_t)700 << 30, (size_t)16 << 30));
    CHECK(!numa_should_bind(&n, (size_t)1010 << 30, (size_t)16 << 30)); /* 2 x 512 GiB less 2 x 16 */

    begin_case("eight nodes");
    CHECK(!numa_parse(&n, eight, &e) && n.n_nodes == 8);
    static const int inters[] = {2048, 1536, 768, 576, 128, 100, 1, 18432};
    for (int i = 0; i < 8; i++) covers(&n, inters[i], 128, true);
    numa_split(&n, 2048, 128, p);
    for (int a = 0; a < 8; a++) CHECK(p[a].count == 256 && p[a].first == a * 256);

    begin_case("uneven nodes");
    /* uneven; the third has memory only */
    CHECK(!numa_parse(&n, "node 1000 0-5\nnode 1000 6-7\nnode 4000 -\n", &e) && n.cpus[2] == 0);
    covers(&n, 2048, 128, false);
    numa_split(&n, 2048, 128, p);
    CHECK(p[0].count == 1536 && p[1].count == 512 && p[2].count == 0);

    /* Threads: ordered by node, in proportion, none on nodes without CPUs, and few where there are few CPUs. */
    static const struct {
        int have[8], n_nodes, threads;
        const char *node;
    } deals[] = {
        {{16}, 1, 3, "000"},
        {{4, 4}, 2, 8, "00001111"},
        {{4, 4}, 2, 3, "001"},
        {{6, 2}, 2, 4, "0001"},
        {{1, 1, 1, 1, 1, 1, 1, 1}, 8, 8, "01234567"},
        {{0, 4, 0, 4}, 4, 4, "1133"},
        {{4, 4, 0}, 3, 1, "0"},
        {{4, 4, 4, 4}, 4, 2, "02"},
        {{0, 0}, 2, 4, "0011"},
        {{3, 1}, 2, 8, "00000011"},
    };
    for (size_t i = 0; i < sizeof deals / sizeof *deals; i++) {
        uint8_t node[8];
        begin_case("%d threads on %d nodes, in the order %s", deals[i].threads, deals[i].n_nodes, deals[i].node);
        numa_threads(deals[i].have, deals[i].n_nodes, deals[i].threads, node);
        for (int t = 0; t < deals[i].threads; t++) CHECK(node[t] == deals[i].node[t] - '0');
    }
    begin_case("uneven nodes");
    CHECK(!numa_parse(&n, "node 1000 0-5\nnode 1000 6-7\n", &e)); /* three quarters belong on the first node */
    CHECK(numa_should_bind(&n, (size_t)1200 << 20, 0) && !numa_should_bind(&n, (size_t)1400 << 20, 0));

    static const char *const bad[] = {"",
                                      "node\n",
                                      "node x 0\n",
                                      "node 10 0-\n",
                                      "node 10 5-2\n",
                                      "node 10 0\nnode 10 0\n",
                                      "nodes 10 0\n",
                                      "node 10 0-5000\n",
                                      "node 0 1\n",
                                      "node 10 0 1\n",
                                      "distance 70 10\n",
                                      "node 10 0\ndistance 0 9\n",
                                      "node 10 0\nspeed 0 0\n",
                                      "node 10 0\nspeed 0 fast\n",
                                      "node 10 1;2\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin_case("topology %zu of those that are refused", i);
        memset(&e, 0, sizeof e);
        CHECK(numa_parse(&n, bad[i], &e) == ERR_USAGE && e.text[0]);
    }

    begin_case("this machine");
    numa_read(&n);
    int cpus = 0;
    for (int a = 0; a < n.n_nodes; a++) cpus += n.cpus[a];
    CHECK(n.n_nodes >= 1 && cpus >= 1 && n.memory[0] > 0);
    char *mem = mem_pages(1 << 20, 0);
    int rc = numa_bind_to(mem, 1 << 20, 0, &e);
    if (rc) printf("numa_bind_to SKIPPED: %s\n", e.text); /* containers may forbid mbind */
    CHECK(numa_bind_to(mem, 1 << 20, -1, &e) == ERR_USAGE);
    mem_pages_free(mem, 1 << 20);

    /* Pages keep their contents when they move, be they in memory or not, and whatever the range: at its ends only
     * whole pages move. */
    enum { MOVED = 1100 * 4096 };
    begin_case("moved pages");
    n.n_nodes = 2, n.kernel_node[1] = n.kernel_node[0] = 0;
    mem = mem_pages(MOVED, 0);
    for (int i = 0; i < MOVED / 2; i++) mem[i] = (char)(i * 7 + i / 4096);
    for (int node = -1; node < 2; node++) numa_move_to(&n, mem, MOVED - 5, node);
    numa_move_to(&n, mem, 100, 1);
    for (int i = 0; i < MOVED; i++) CHECK(mem[i] == (i < MOVED / 2 ? (char)(i * 7 + i / 4096) : 0));
    mem_pages_free(mem, MOVED);
    printf("%d failures\n", failures);
    return failures != 0;
}
