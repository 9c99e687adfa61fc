/* Runs worlds: see test/README.md.
 * usage: world MODEL_DIR DIR [--seeds A-B] [--actions N] [--gpus LIST] [--script FILE] [--print] [--trace]
 * DIR: a directory for files, best in memory: what it holds is removed. Prints a line for each world that fails, and
 * one with all counts. */
#include "test/world/world.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/test_limits.h"
#include "cli/report.h"
#include "test/world/disk.h"
#include "test/world/fibers.h"

struct world *world;
const char *world_model;

void world_note(const char *fmt, ...) {
    char text[400];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    world->trace = hash64(text, strlen(text), world->trace + fibers_n_points);
    if (world->is_traced && n) printf("    %s\n", text);
}
void world_fail(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(world->failure, sizeof world->failure, fmt, args);
    va_end(args);
    fflush(stdout);
    _exit(1);
}
static void on_stuck(void) {
    if (world->is_traced) fibers_describe();
    world_fail("a thread waits for a signal that no other thread will give");
}
static void log_to_trace(void *ctx, enum log_level level, const char *text) {
    if (world->is_traced) printf("    log: %s\n", text);
}

/* One process of the world. Returns whether it ended in good order and the script is over. */
static bool run_process(bool *failed) {
    fflush(stdout);
    const pid_t child = fork();
    int status;
    if (!child) {
        fibers_on_stuck = on_stuck;
        const bool is_over = people_live();
        world->n_points += fibers_n_points;
        fflush(stdout);
        _exit(is_over ? 0 : 2);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) exit(2);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    world->n_deaths += code == DISK_KILLED;
    *failed = code != 0 && code != 2 && code != DISK_KILLED;
    if (*failed && !*world->failure)
        snprintf(world->failure, sizeof world->failure, "the process ended with %s %d", code < 0 ? "signal" : "status",
                 code < 0 ? WTERMSIG(status) : code);
    return !code;
}

static void remove_all(const char *dir) {
    char command[400];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) || mkdir(dir, 0700)) exit(2);
}

/* Returns whether the world of this script lasts. */
static bool run_world(void) {
    bool failed = false;
    memset(world->user, 0, sizeof world->user);
    memset(world->forgotten, 0, sizeof world->forgotten);
    *world->failure = 0;
    world->next = 0, world->trace = world->script.seed;
    remove_all(world->dir);
    while (!failed && !run_process(&failed)) {
    }
    return !failed;
}

enum { MOST_FAILED = 3 };

int main(int argc, char **argv) {
    uint64_t first = 1, last = 1;
    int actions = 400, n_failed = 0;
    const char *script = NULL, *gpus = "";
    bool prints = false;
    fibers_begin();
    if (argc < 3) return 2;
    world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (world == MAP_FAILED) return 2;
    world_model = argv[1];
    snprintf(world->dir, sizeof world->dir, "%s", argv[2]);
    for (int i = 3; i < argc; i++) {
        if (!strcmp(argv[i], "--print")) prints = true;
        else if (!strcmp(argv[i], "--trace")) world->is_traced = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--actions")) actions = atoi(argv[++i]);
        else if (i + 1 < argc && !strcmp(argv[i], "--gpus")) gpus = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--script")) script = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--seeds") &&
                 sscanf(argv[++i], "%" SCNu64 "-%" SCNu64, &first, &last) >= 1) {
            if (!strchr(argv[i], '-')) last = first;
        } else return 2;
    }
    setenv("HOME", world->dir, 1);
    for (const char *const *v = (const char *const[]){"XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", NULL}; *v;
         v++)
        unsetenv(*v);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    report_set_quiet(true);
    log_set(log_to_trace, NULL, LOG_INFO);
    test_limits_set(TEST_LIMIT_PREFILL_ROWS, 20);
    test_limits_set(TEST_LIMIT_KV_DISK_MIN_US, 1);
    disk_open(world->dir);
    if (!prints) {
        fibers_on_stuck = on_stuck;
        alone_open();
    }
    for (uint64_t seed = first; seed <= last && n_failed < MOST_FAILED; seed++) {
        int bad = 0;
        if (script) bad = script_read(&world->script, script);
        else script_make(&world->script, seed, gpus, actions);
        if (bad) {
            printf("%s: line %d is not of a script\n", script, bad);
            return 2;
        }
        if (prints) {
            script_write(&world->script, stdout);
            continue;
        }
        if (run_world()) {
            if (world->is_traced) printf("trace %016" PRIx64 "\n", world->trace);
            continue;
        }
        n_failed++;
        printf("FAIL seed %" PRIu64 ", action %u: %s\n", world->script.seed,
               world->next ? world->script.v[world->next - 1].number : 0, world->failure);
        fflush(stdout);
    }
    if (prints) return 0;
    printf("%" PRIu64 " events, %" PRIu64 " points, %" PRIu64 " answers, %" PRIu64 " cut, %" PRIu64
           " after a cached prefix, %" PRIu64 " forks, %" PRIu64 " loads, %" PRIu64 " failed calls, %" PRIu64
           " deaths, %" PRIu64 " answers alone, %" PRIu64 " rotten bits, %" PRIu64 " rotten chats refused, %" PRIu64
           " keys forgotten\n",
           world->n_events, world->n_points, world->n_answers, world->n_cut, world->n_reused, world->n_forks,
           world->n_loads, world->n_failed, world->n_deaths, world->n_alone, world->n_rotten, world->n_refused,
           world->n_forgotten);
    return n_failed > 0;
}
