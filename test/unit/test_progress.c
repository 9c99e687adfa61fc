/* Messages of other threads beside the progress line: none is lost while the screen is held. TSan sees the rest. */
#include "cli/terminal/progress.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "test/unit/unit.h"

enum { THREADS = 2, MESSAGES = 1000 };

static atomic_int n_running = THREADS;
static void *print_messages(void *arg) {
    for (int i = 0; i < MESSAGES; i++) progress_print("a message");
    atomic_fetch_sub(&n_running, 1);
    return NULL;
}

static void test_messages_of_threads(void **state) {
    pthread_t threads[THREADS];
    FILE *out = tmpfile();
    const int before = dup(2);
    char line[64];
    int n = 0;
    assert_non_null(out);
    progress_init(true, false, false);
    dup2(fileno(out), 2);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, print_messages, NULL), 0);
    for (int i = 0; atomic_load(&n_running); i++) {
        progress_hold(i % 2 == 0);
        for (int k = 0; k < 20; k++)
            if (progress_has_held() || progress_shown()) progress_tick();
        progress_update("reading", 0.5, 1);
        progress_flush();
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    progress_hold(false);
    dup2(before, 2);
    close(before);
    assert_false(progress_has_held());
    rewind(out);
    while (fgets(line, sizeof line, out)) n += strstr(line, "a message") != NULL;
    assert_int_equal(n, THREADS * MESSAGES);
    fclose(out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_messages_of_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
