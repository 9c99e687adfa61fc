/* Three desktops with three models each in virtual time: tokens/s of one answer after 1,024 tokens, with all experts of
 * as many layers as fit (the default until 2026-11), and as the default chooses with a usage profile; beside what
 * others have published. Prints a table.
 *
 *   bench_desktops [SKEW]    the expert of rank i of each layer is chosen 1 / i^SKEW as often as the first (0.8) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/experts/usage_profile.h"
#include "engine/model/known.h"
#include "engine/placement/calibrate.h"
#include "engine/plan/virtual.h"
#include "engine/weights/shape_only.h"

enum { KEYS = 1024 };

#define TABLE "layer 1 has a table of n-grams of 46 GB, which decode would upload: all later layers stay on the CPU"
static const struct {
    const char *machine, *model, *format;
    double published;          /* tokens/s; 0: none found */
    const char *whose, *cause; /* cause: of a factor of more than 1.3 either way */
} rows[] = {
    {"desktop-ddr5-64+rtx3060", "qwen3.6-35b", "q4_k_m", 51.3,
     "llama.cpp, 124 hot experts a layer, thecodacus/llama.cpp pull request 5, 2026-07 (42.3 with all on the CPU)",
     "their cache gains 1.21 over the CPU, the assumed profile 1.49; their CPU, which is not named, has 0.87 of this "
     "one's rate"},
    {"desktop-ddr5-64+rtx3060", "qwen3-30b", "q4_k_m", 0, ""},
    {"desktop-ddr5-96+rtx3060", "gpt-oss-120b", "mxfp4", 0, ""},
    {"desktop-ddr5-192+rtx4090", "qwen3.8-flash-next", "nvfp4", 36, "FreeToken pull request 257, 2026-08", TABLE},
    {"desktop-ddr5-96+rtx4090", "gpt-oss-120b", "mxfp4", 0, ""},
    {"desktop-ddr5-96+rtx4090", "glm-4.5-air", "q4_k_m", 0, ""},
    {"desktop-ddr5-192+rtx5090", "qwen3.8-flash-next", "nvfp4", 65, "FreeToken pull request 257, 2026-08", TABLE},
    {"desktop-ddr5-192+rtx5090", "deepseek-v4-flash", "iq2_xxs", 0, ""},
    {"desktop-ddr5-64+rtx5090", "qwen3-30b", "q4_k_m", 134.2,
     "llama.cpp issue 28196, Windows, all on the card, 2026-09",
     "an answer on a card alone is modelled at 0.85 of its memory's rate and 4 us a launch; an H100 took 2.4 times "
     "that"},
};

static void die(const char *what, const struct error *e) {
    fprintf(stderr, "bench_desktops: %s: %s\n", what, e->text);
    exit(1);
}

static struct usage_profile *open_profile(const struct config *c, double skew) {
    struct usage_profile *u;
    struct error e = {0};
    if (usage_profile_open(&u, c, NULL, 1, &e)) die("profile", &e);
    for (int l = 0; l < c->n_layers; l++)
        for (int x = 0; x < c->n_experts; x++)
            u->before[l * c->n_experts + (x * 7 + l) % c->n_experts] = (uint32_t)(1e5 * pow(x + 1, -skew));
    usage_profile_pin(u, 0);
    return u;
}

struct answer {
    double rate, share; /* tokens/s; of the choices, on pinned experts */
    int layers;         /* whole ones */
};
static struct answer decode(const struct cost_machine *m, const struct weights *w, struct expert_cache experts,
                            struct usage_profile *u) {
    struct virtual *v;
    struct error e = {0};
    double t;
    if (virtual_open(&v, &(struct virtual_options){.cost = m, .w = w, .kv = DT_BF16, .experts = experts, .usage = u},
                     &e) ||
        virtual_decode(v, DECODE_HYBRID, 1, KEYS, &t, NULL, &e))
        die("decode", &e);
    const struct decode *d = virtual_decode_state(v);
    const struct answer a = {1 / t, decode_pinned_share(d), decode_expert_layers(d)};
    virtual_close(&v);
    return a;
}

int main(int argc, char **argv) {
    const double skew = argc > 1 ? atof(argv[1]) : 0.8;
    printf("| machine | model | experts on the CPU | whole layers | of them on the card | default, choices as 1 / "
           "rank^%g | on the "
           "card | published | factor | by | cause |\n"
           "|---|---|---|---|---|---|---|---|---|---|---|\n",
           skew);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static struct cost_machine m;
        static struct config c;
        struct shape_only shape = {0};
        struct error e = {0};
        if (calibrate_read(&m, rows[i].machine, &e) || known_model_config(known_model_find(rows[i].model), &c, &e) ||
            shape_only_open_as(&shape, &c, known_format_find(rows[i].format), &e))
            die(rows[i].model, &e);
        struct usage_profile *u = open_profile(&c, skew);
        const struct answer none = decode(&m, &shape.w, (struct expert_cache){BUDGET_OFF}, u),
                            before = decode(&m, &shape.w, (struct expert_cache){BUDGET_LAYERS}, u),
                            after = decode(&m, &shape.w, (struct expert_cache){BUDGET_AUTO, .is_pinned = true}, u);
        printf("| %s | %s %s | %.1f | %.1f | %d of %d | %.1f | ", m.name, rows[i].model, rows[i].format, none.rate,
               before.rate, before.layers, c.n_layers, after.rate);
        if (after.share > 0) printf("%.0f %% of the choices |", 100 * after.share);
        else printf("%d of %d layers |", after.layers, c.n_layers);
        if (rows[i].published > 0)
            printf(" %.1f | %.2f | %s | %s |\n", rows[i].published, after.rate / rows[i].published, rows[i].whose,
                   rows[i].cause);
        else printf(" | | | |\n");
        fflush(stdout);
        usage_profile_close(&u);
        shape_only_close(&shape);
    }
    return 0;
}
