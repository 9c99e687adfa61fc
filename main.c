#include <stdio.h>

#include "cli/cli.h"
#include "engine/base/fault.h"
#include "engine/base/file.h"
#include "engine/base/test_limits.h"
#include "engine/ember/ember.h"

int main(int argc, char **argv) {
    file_embed(ember_files);
    if (fault_from_env()) {
        fprintf(stderr, "hearth: HEARTH_FAULT: invalid value\n");
        return 2;
    }
    if (test_limits_from_env()) {
        fprintf(stderr, "hearth: HEARTH_LIMITS: invalid value\n");
        return 2;
    }
    return cli_main(argc, argv);
}
