#include "cli/modes/use.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/options/hub_cache.h"
#include "cli/options/model_path.h"
#include "cli/report.h"

/* Copies the value for the configuration file: a URL, a name that a search finds again, or the absolute path of a model
 * that was given by path. */
static int lasting_name(struct app *a, const char *name, char out[PATHS_MAX], struct error *e) {
    char dir[PATHS_MAX];
    snprintf(out, PATHS_MAX, "%s", name);
    if (model_path_is_url(name)) return 0;
    int rc = opt_set(&a->opts, OPT_MODEL, name, ORIGIN_FLAG, "--use", e);
    if (!rc) rc = model_path_find(&a->opts, dir, sizeof dir, e);
    if (rc || !strncmp(dir, "ember:", 6)) {
        snprintf(out, PATHS_MAX, "ember");
        return rc;
    }
    bool is_path = file_exists(name) || file_is_dir(name);
    char *real = !is_path && hub_cache_name(dir, out, PATHS_MAX) ? NULL : realpath(dir, NULL);
    if (real) snprintf(out, PATHS_MAX, "%s", real);
    free(real);
    return 0;
}

int use_run(struct app *a, struct error *e) {
    char name[PATHS_MAX], file[PATHS_MAX];
    int rc = lasting_name(a, a->opts.v[OPT_USE].text, name, e);
    if (!rc && strpbrk(name, "\n\r\"")) rc = error_set(e, ERR_USAGE, "--use: the path contains a quote or a line end");
    if (!rc) rc = opt_config_write("model", name, e);
    if (!rc)
        report_note("%s is now the default model (saved in %s); hearth --use ember restores the built-in one", name,
                    paths_get(PATHS_CONFIG, "config", file, sizeof file) ? "the configuration file" : file);
    return rc;
}
