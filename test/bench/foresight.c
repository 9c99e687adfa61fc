/* What virtual time says of published and of measured machines: one question an argument list, or one a line of standard input; prints the
 * seconds of each. foresight.py asks, and sets beside them what was published or measured.
 *     step MACHINE MODEL cpu|hybrid|dual SESSIONS KEYS [OPTION ..]      prefill MACHINE MODEL cpu|blend|slp|dslp TOKENS [OPTION ..]
 * MACHINE: a preset or a machine file. MODEL: an architecture by name, or a checkpoint's directory. Options: experts=Q4_K and the like, dense=
 * likewise (formats of GGUF too), launch=US of an operation on a device, gemv=GBPS at which the processor reads weights, taken=GBPS of host
 * memory that somebody else has, layers=N of the first ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/known.h"
#include "engine/sched/calibrate.h"
#include "engine/store/shape.h"
#include "engine/virtual.h"

static int fail(const char *text) {
    fprintf(stderr, "foresight: %s\n", text);
    return 1;
}
static enum dtype format(const char *name) {
    for (int t = 1; t < DT_COUNT; t++)
        if (!strcmp(dtype_name((enum dtype)t), name)) return (enum dtype)t;
    return DT_NONE;
}

static int question(int n, char **word) {
    static const char *const cuts[] = {"cpu", "hybrid", "dual"};
    static struct cost_machine m;
    static struct config c;
    struct error e = {0};
    bool step = n > 5 && !strcmp(word[0], "step");
    int from = step ? 6 : 5, cut = 0, layers = 0, size = n > 4 ? atoi(word[4]) : 0;
    double seconds, taken = 0;
    if (n < from || size < 1 || (!step && strcmp(word[0], "prefill")))
        return fail("step MACHINE MODEL CUT SESSIONS KEYS, or prefill MACHINE MODEL MODE TOKENS");
    while (step && cut < 3 && strcmp(cuts[cut], word[3])) cut++;
    enum policy_mode mode = step ? POLICY_AUTO : policy_find(word[3]);
    if (cut == 3 || mode == POLICY_MODES) return fail("no such mode");
    if (calibrate_read(&m, word[1], &e)) return fail(e.text);
    const struct known_model *k = known_find(word[2]);
    enum dtype dense = k ? k->dense : DT_NONE, experts = k ? k->experts : DT_NONE;
    for (int i = from; i < n; i++) {
        const char *value = strchr(word[i], '=');
        if (!value) return fail("an option is NAME=VALUE");
        value++;
        if (!strncmp(word[i], "experts=", 8)) experts = format(value);
        else if (!strncmp(word[i], "dense=", 6)) dense = format(value);
        else if (!strncmp(word[i], "taken=", 6)) taken = atof(value) * 1e9;
        else if (!strncmp(word[i], "layers=", 7)) layers = atoi(value);
        else if (!strncmp(word[i], "gemv=", 5))
            for (int kind = 0; kind < COST_ELEM; kind++) m.domain[0].bw[kind] = (struct cost_curve){1, {1}, {(float)(atof(value) * 1e9)}};
        else if (!strncmp(word[i], "launch=", 7))
            for (int d = 1; d <= m.n_devices; d++)
                for (int kind = 0; kind < COST_KINDS; kind++) m.domain[d].latency[kind] = atof(value) * 1e-6;
        else return fail("no such option");
    }
    struct shape shape = {0};
    struct weights w = {0};
    int rc = k ? known_config(k, &c, &e) : weights_open(&w, word[2], false, &e);
    if (!rc && k && (!dense || !experts)) return fail("no such format");
    if (!rc && k) rc = shape_open(&shape, &c, dense, experts, &e);
    struct virtual *v = NULL;
    if (!rc) rc = virtual_open(&v, &(struct virtual_options){.cost = &m, .w = k ? &shape.w : &w, .kv = DT_BF16, .taken = taken, .layers = layers}, &e);
    if (!rc) rc = step ? virtual_step(v, (enum step_cut)cut, size, atoi(word[5]), &seconds, NULL, &e) : virtual_prefill(v, mode, size, &seconds, &e);
    if (!rc) printf("%.6g\n", seconds);
    fflush(stdout);
    virtual_close(&v);
    if (k) shape_close(&shape);
    else weights_close(&w);
    return rc ? fail(e.text) : 0;
}

int main(int argc, char **argv) {
    char line[4096], *word[16];
    if (argc > 1) return question(argc - 1, argv + 1);
    while (fgets(line, sizeof line, stdin)) {
        int n = 0;
        for (char *p = strtok(line, " \t\n"); p && n < 16; p = strtok(NULL, " \t\n")) word[n++] = p;
        if (n && question(n, word)) return 1;
    }
    return 0;
}
