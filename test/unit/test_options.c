/* The option table and its parser. */
#include <stdlib.h>

#include "base/cpu_level.h"
#include "base/exec_mode.h"
#include "cli/options/opt.h"
#include "test/unit/unit.h"

static int parse(struct opts *o, struct error *e, const char *a, const char *b, const char *c, const char *d) {
    char *argv[] = {"hearth", (char *)a, (char *)b, (char *)c, (char *)d, NULL};
    int argc = 1;
    while (argc < 5 && argv[argc]) argc++;
    opt_init(o);
    return opt_parse(o, argc, argv, e);
}

static void test_forms(void **state) {
    struct opts o;
    struct error e;
    static const char *const forms[][4] = {{"--temp", "0.5"},
                                           {"--temp=0.5"},
                                           {"-q", "--temp=0.5"},
                                           {"--temp=9", "--temp", "0.5"},
                                           {"--temp", "0.5", "--"}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        assert_int_equal(parse(&o, &e, forms[i][0], forms[i][1], forms[i][2], forms[i][3]), 0);
        assert_true(o.v[OPT_TEMP].num == 0.5);
        assert_int_equal(o.v[OPT_TEMP].origin, ORIGIN_FLAG);
        opt_free(&o);
    }
    static const char *const shorts[][4] = {
        {"-qn16"}, {"-q", "-n", "16"}, {"-qn", "16"}, {"-n=16", "-q"}, {"--max_tokens=16", "-q"}};
    for (size_t i = 0; i < sizeof shorts / sizeof *shorts; i++) {
        assert_int_equal(parse(&o, &e, shorts[i][0], shorts[i][1], shorts[i][2], shorts[i][3]), 0);
        assert_int_equal(o.v[OPT_MAX_TOKENS].integer, 16);
        assert_true(o.v[OPT_QUIET].on);
        opt_free(&o);
    }
    assert_int_equal(parse(&o, &e, "-fa", "--file", "b", "--file=c"), 0);
    assert_int_equal(o.v[OPT_FILE].n_items, 3);
    assert_string_equal(o.v[OPT_FILE].items[2], "c");
    opt_free(&o);
    assert_int_equal(parse(&o, &e, "--no-think", "--bench", "kernels", "--json"), 0);
    assert_false(o.v[OPT_THINK].on);
    assert_string_equal(o.v[OPT_BENCH].text, "kernels");
    assert_int_equal(opt_mode(&o), OPT_BENCH);
    opt_free(&o);
    assert_int_equal(parse(&o, &e, "--bench", "--json", NULL, NULL), 0);
    assert_string_equal(o.v[OPT_BENCH].text, "");
    opt_free(&o);
    assert_int_equal(parse(&o, &e, "-p", "", NULL, NULL), 0);
    assert_string_equal(o.v[OPT_PROMPT].text, "");
    opt_free(&o);
}

static void test_errors(void **state) {
    struct opts o;
    struct error e;
    static const struct {
        const char *args[3], *words;
    } rows[] = {{{"--tmep=1"}, "--temp"},
                {{"--promt", "x"}, "--prompt"},
                {{"--nothink"}, "--no-think"},
                {{"--maxtokens=3"}, "--max-tokens"},
                {{"-n"}, "needs a value"},
                {{"--temp=-1"}, "0 to 100"},
                {{"--temp=nan"}, "not a number"},
                {{"--top-p", "1.5"}, "0 to 1"},
                {{"--seed=99999999999999999999"}, "outside"},
                {{"--threads=0"}, "1 to 1024"},
                {{"--cpu=sse"}, "avx2"},
                {{"--model="}, "empty"},
                {{"-py", "--", "x"}, "unexpected"},
                {{"--special"}, "--tokenize"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(parse(&o, &e, rows[i].args[0], rows[i].args[1], rows[i].args[2], NULL), ERR_USAGE);
        assert_non_null(strstr(e.text, rows[i].words));
        opt_free(&o);
    }
}

/* Every row can be found and has a help text, and no letter occurs twice. */
static void test_table(void **state) {
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_def *d = &opt_table[id];
        assert_non_null(d->name);
        assert_non_null(d->help);
        assert_int_equal(opt_find(d->name, strlen(d->name), NULL), id);
        assert_true((d->kind >= OPT_TEXT) == (d->arg != NULL));
        assert_false(d->kind == OPT_LIST && d->flags & (OPT_SETTING | OPT_LIVE)); /* see OPT_LIST */
        for (int k = 0; d->letter && k < id; k++) assert_int_not_equal(opt_table[k].letter, d->letter);
    }
}

static void count(void *ctx, const char *text) {
    ++*(int *)ctx;
    assert_non_null(strstr(text, "HEARTH_TOPK"));
    assert_non_null(strstr(text, "HEARTH_TOP_K?"));
}

static void test_precedence(void **state) {
    struct opts o;
    struct error e;
    setenv("HEARTH_TEMP", "0.25", 1);
    setenv("HEARTH_TOP_K", "7", 1);
    assert_int_equal(parse(&o, &e, "--temp=0.5", NULL, NULL, NULL), 0);
    setenv("HEARTH_TOPK", "8", 1); /* reported as unknown; variables without a similar name belong to other programs */
    setenv("HEARTH_KEEPER", "1", 1);
    int warnings = 0;
    assert_int_equal(opt_config_environment(&o, count, &warnings, &e), 0);
    assert_int_equal(warnings, 1);
    unsetenv("HEARTH_TOPK");
    assert_true(o.v[OPT_TEMP].num == 0.5);
    assert_int_equal(o.v[OPT_TOP_K].integer, 7);
    assert_int_equal(o.v[OPT_TOP_K].origin, ORIGIN_ENV);
    opt_free(&o);
    setenv("HEARTH_TOP_K", "many", 1);
    opt_init(&o);
    assert_int_equal(opt_config_environment(&o, count, &warnings, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "HEARTH_TOP_K"));
    opt_free(&o);
}

/* The words of a choice are the names of the enum that the engine takes, all of them but those that are no words of the
 * command line. */
static void test_choices_are_names(void **state) {
    static const struct {
        enum opt_id id;
        int n; /* words */
    } rows[] = {{OPT_CPU, CPU_LEVELS}, {OPT_DRAFT, DRAFT_MODEL}, {OPT_PREFILL, 5}, {OPT_DECODE, 5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[128], *end = NULL;
        int n = 0;
        snprintf(words, sizeof words, "%s", opt_table[rows[i].id].choices);
        for (char *w = strtok_r(words, " ", &end); w; w = strtok_r(NULL, " ", &end), n++) {
            if (rows[i].id == OPT_CPU) assert_int_not_equal(cpu_level_find(w), CPU_LEVELS);
            else if (rows[i].id == OPT_DRAFT) assert_in_range(draft_kind_find(w), DRAFT_NONE, DRAFT_INT4);
            else
                assert_int_not_equal(exec_mode_find(rows[i].id == OPT_PREFILL ? STAGE_PREFILL : STAGE_DECODE, w),
                                     EXEC_MODES);
        }
        assert_int_equal(n, rows[i].n);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forms), cmocka_unit_test(test_errors),
                                       cmocka_unit_test(test_table), cmocka_unit_test(test_precedence),
                                       cmocka_unit_test(test_choices_are_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
