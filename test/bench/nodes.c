/* NUMA nodes in virtual time: how the routed experts of a layer are best divided between the memory nodes of a CPU.
 *
 *   bench_nodes         the table
 *   bench_nodes check   asserts what simulated-policies.md says of it */
#include "engine/placement/numa_cost.h"
#include "test/bench/near_loads.h"

/* Memory nodes as the cost model's domains (placement/numa_cost.h), the routed experts of one or some tokens: rows of
 * every matrix on each node (as the engine has them: weights/numa_copy.c, span.h), or whole experts alternating,
 * computed on their node or read from the other one, moved by the recent load during attention or not; or alternating
 * pages and everything on one node, as a file's pages are without placement. UNITS: an expert split across down's
 * columns, at blocks of that size (as it was until 2026-11-22). */
enum { SHARES, BLOCKS, WHOLE, REMOTE, MOVED, SPREAD, ONE, LAYOUTS };
static const struct socketed {
    const char *name, *model;
    enum dtype experts;
    int nodes, block; /* columns of a block of down */
    int inter;
    double uneven; /* fraction of the machine's bandwidth that node 0 has above its share */
} socketed[] = {{"DeepSeek-V3, FP8, two nodes", "deepseek-v3", DT_E4M3, 2, 128, 2048, 0},
                {"Qwen3-30B, Q4_K, two nodes", "qwen3-30b", DT_Q4_K, 2, 256, 768, 0},
                {"Qwen3-30B, FP8, eight nodes", "qwen3-30b", DT_E4M3, 8, 128, 768, 0},
                {"DeepSeek-V3, FP8, two nodes, one with half the memory's channels", "deepseek-v3", DT_E4M3, 2, 128,
                 2048, 1.0 / 6}};

static void sockets_open(const struct socketed *s) {
    if (!cost_preset(&machine, "paper-a-1")) abort();
    numa_cost_even(&machine, s->nodes, machine.domain[0].memory);
    for (int a = 0; a < s->nodes; a++) machine.node[a].bw_share += a ? -s->uneven / (s->nodes - 1) : s->uneven;
}

static double sockets(const struct socketed *s, int layout, int batch, int steps) {
    enum { NODES = COST_NODES, WARM = 12 };
    static struct loads l;
    static struct cost_table table[NODES];
    struct cost_model q = model_in(known_model_find(s->model), s->experts);
    struct cost_machine parts;
    struct score score;
    void *mem = calloc(1, score_bytes(LAYERS, q.n_experts));
    uint8_t node[LAYERS][MOST];
    double left[LAYERS] = {0}, sum = 0, n = 0;
    int moving[LAYERS], to[LAYERS];
    int32_t rows[MOST];
    static int32_t ids[64 * 8];
    if (!mem) abort();
    sockets_open(s);
    q.n_experts = q.n_experts < MOST ? q.n_experts : MOST;
    numa_cost_machine(&parts, &machine);
    score_open(&score, score_find("ema"), LAYERS, q.n_experts, q.topk, mem);
    begin(&l, &q, 0.995);
    for (int a = 0; a < s->nodes; a++) cost_table_fill(&table[a], &parts, a, &q, COST_MANY_ROWS);
    struct numa_shares lie = layout == SPREAD ? numa_cost_interleaved(&machine)
                             : layout == ONE  ? numa_cost_single(&machine, 0)
                                              : numa_cost_balanced(&machine, &q, 1, COST_MANY_ROWS);
    if (layout == BLOCKS) /* equal, rounded to whole blocks */
        for (int a = 0, blocks = s->inter / s->block; a < s->nodes; a++)
            lie.stored[a] = lie.computed[a] = (double)(blocks * (a + 1) / s->nodes - blocks * a / s->nodes) / blocks;
    for (int i = 0; i < LAYERS; i++)
        for (int e = 0; e < q.n_experts; e++) node[i][e] = (uint8_t)(e % s->nodes), moving[i] = -1;
    double window = cost_attention_block(&machine, 1, &q, cost_decode_rows(batch, 1024));
    for (int t = 0; t < WARM + steps; t++)
        for (int i = 0; i < LAYERS; i++) {
            /* the node with more recent work gives the least busy one the expert that balances them best */
            if (layout == MOVED) {
                double busy[NODES] = {0};
                int from = 0, least = 0;
                for (int e = 0; e < q.n_experts; e++)
                    busy[node[i][e]] += cost_table_at(&table[node[i][e]], 1) * fmin(score_of(&score, i, e), 1);
                for (int a = 0; a < s->nodes; a++)
                    from = busy[a] > busy[from] ? a : from, least = busy[a] < busy[least] ? a : least;
                if (moving[i] >= 0 && (left[i] -= window) <= 0) node[i][moving[i]] = (uint8_t)to[i], moving[i] = -1;
                else if (moving[i] < 0) {
                    double best = busy[from] - busy[least];
                    for (int e = 0; e < q.n_experts; e++) {
                        double load = fmin(score_of(&score, i, e), 1);
                        double after = fabs(busy[from] - busy[least] -
                                            (cost_table_at(&table[from], 1) + cost_table_at(&table[least], 1)) * load);
                        if (node[i][e] == from && after < 0.8 * best)
                            best = after, moving[i] = e, to[i] = least,
                            left[i] = q.expert_bytes / machine.inter_node_bw;
                    }
                }
            }
            draw(&l, i, batch, rows);
            int all = 0, k = 0;
            struct split_expert ex[MOST];
            double shared = 0;
            for (int e = 0; e < q.n_experts; e++) {
                for (int c = 0; c < rows[e]; c++) ids[k++] = e;
                if (!rows[e]) continue;
                shared += numa_cost_expert(&machine, &q, rows[e], COST_MANY_ROWS, &lie, NULL);
                ex[all++] = (struct split_expert){.rows = rows[e], .resident = 1u << node[i][e]};
            }
            score_update(&score, i, &(struct score_rows){.n = batch, .ids = ids});
            if (t < WARM) continue;
            n++;
            if (layout < WHOLE || layout > MOVED) {
                sum += shared;
                continue;
            }
            struct split_domain d[NODES];
            for (int c = 0; c < s->nodes; c++) /* experts of another node are read over the link between the nodes */
                d[c] = (struct split_domain){
                    .class = c ? COST_GPU : COST_CPU,
                    .expert_cost = &table[c],
                    .transfer_s = layout == REMOTE ? cost_transfer(&parts, c, COST_H2D, q.expert_bytes) : 0,
                    .max_transfers = MOST};
            split_run(split_find("auto"),
                      &(struct split_in){.domain = d, .expert = ex, .n_domains = s->nodes, .n = all}, &plan);
            sum += plan.end_s;
        }
    free(mem);
    return sum / n;
}
static bool several_sockets(void) {
    bool good = true;
    printf("\n| ms a layer | rows | shares of rows | of blocks of down | whole | read from others | moved | pages by "
           "turns | all on one |\n");
    for (size_t i = 0; i < sizeof socketed / sizeof *socketed; i++)
        for (int batch = 1; batch <= 24; batch = batch == 1 ? 4 : batch == 4 ? 24 : 25) {
            double t[LAYOUTS];
            printf("| %s | %d |", socketed[i].name, batch);
            for (int k = 0; k < LAYOUTS; k++) {
                t[k] = sockets(&socketed[i], k, batch, 40);
                printf(" %.3f |", 1e3 * t[k]);
                good &= t[SHARES] <= t[k] * (1 + 1e-9);
            }
            printf("\n");
            good &= t[MOVED] < 1.02 * t[WHOLE] && t[SPREAD] > 1.5 * t[SHARES] && t[ONE] > t[SPREAD];
            if (i) good &= t[BLOCKS] > 1.2 * t[SHARES];
        }
    return good;
}

int main(int argc, char **argv) {
    const bool good = several_sockets();
    if (argc > 1 && !strcmp(argv[1], "check") && !good)
        return printf("FAIL: simulated-policies.md says otherwise\n"), 1;
    return 0;
}
