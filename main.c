#include <stdio.h>

#include "base/file.h"
#include "base/test_env.h"
#include "cli/cli.h"
#include "engine/ember/ember.h"

int main(int argc, char **argv) {
    file_embed(ember_files);
#ifdef HEARTH_TESTING
    const char *invalid = test_env_read();
    if (invalid) {
        fprintf(stderr, "hearth: %s: invalid value\n", invalid);
        return 2;
    }
#endif
    return cli_main(argc, argv);
}
