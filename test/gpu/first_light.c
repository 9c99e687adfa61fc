/* One program for first-light's package: hearth, and the tests and measurements that run on a card. They share the
 * kernels and the built-in model, which would otherwise be in each of them. The name under which it is called selects
 * one, as links to it do. */
#include <stdio.h>
#include <string.h>

#define PROGRAMS(X) \
    X(hearth) \
    X(gpu_conform) X(gpu_timeline) X(gpu_graph) X(gpu_modes) X(gpu_driver) X(bench_device) X(bench_fill) X(bench_turns)
#define DECLARE(name) int name##_main(int argc, char **argv);
#define ROW(name)     {#name, name##_main},

PROGRAMS(DECLARE) /* the sources' main(), renamed by the compiler's arguments */
static const struct {
    const char *name;
    int (*main)(int argc, char **argv);
} programs[] = {PROGRAMS(ROW)};

int main(int argc, char **argv) {
    const char *slash = argc ? strrchr(argv[0], '/') : NULL, *name = slash ? slash + 1 : argc ? argv[0] : "";
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (!strcmp(name, programs[i].name)) return programs[i].main(argc, argv);
    fprintf(stderr, "%s: not the name of a program in it:", name);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) fprintf(stderr, " %s", programs[i].name);
    fprintf(stderr, "\n");
    return 2;
}
