/* A config.json as transformers 5 saves it, with other names and layouts of keys, means the same as the published one:
 * files of saved/, each
 * {"published": config, "saved": config}. */
#include "engine/model/config_parse.h"
#include "test/unit/unit.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/model/arch.h"

/* parameters that an unscaled rope does not use, and what `dim` results from */
static void forget_scaling(struct rope_config *r) {
    r->default_partial_factor = 0;
    if (r->kind == ROPE_DEFAULT)
        r->factor = r->original_max = r->beta_fast = r->beta_slow = r->mscale = r->mscale_all_dim = r->low_freq =
            r->high_freq = 0;
}
static void read_one(struct config *c, const struct json *both, const char *key, const char *name) {
    struct error e = {0};
    const struct json *one = json_get(both, key);
    assert_non_null(one);
    if (config_parse(c, one, name, false, &e)) fail_msg("%s: %s", key, e.text);
    /* The types may differ, and so may names of tensors. */
    c->arch = NULL, c->names = NULL, c->layout = NULL;
    memset(c->model_type, 0, sizeof c->model_type);
    forget_scaling(&c->rope), forget_scaling(&c->second_rope);
}

static void saved_configs_equal_published_ones(void **st) {
    DIR *d = opendir(SAVED_DIR);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *f; (f = readdir(d));) {
        static struct config published, saved;
        char path[4096], *text;
        size_t size;
        struct error e = {0};
        struct arena a = {0};
        struct json both;
        if (!strstr(f->d_name, ".json")) continue;
        snprintf(path, sizeof path, "%s/%s", SAVED_DIR, f->d_name);
        if (file_read(path, 1 << 20, &text, &size, &e) || json_parse(&a, text, size, JSON_UNIQUE, path, &both, &e))
            fail_msg("%s", e.text);
        read_one(&published, &both, "published", f->d_name);
        read_one(&saved, &both, "saved", f->d_name);
        const char *p = (const char *)&published, *s = (const char *)&saved;
        for (size_t i = 0; i < sizeof saved; i++)
            if (p[i] != s[i]) fail_msg("%s: byte %zu of struct config differs", f->d_name, i);
        arena_free(&a);
        mem_free(text);
        n++;
    }
    closedir(d);
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(saved_configs_equal_published_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
