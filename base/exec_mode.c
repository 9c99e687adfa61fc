#include "base/exec_mode.h"

#include <string.h>

const struct exec_mode_row exec_modes[EXEC_MODES] = {
    [MODE_AUTO] = {"auto"},
    [PREFILL_CPU] = {"cpu", STAGE_PREFILL, 0, "on the CPU"},
    [PREFILL_BLEND] = {"blend", STAGE_PREFILL, 1, "blended"},
    [PREFILL_SLP] = {"slp", STAGE_PREFILL, 1, "stream-loaded"},
    [PREFILL_DSLP] = {"dslp", STAGE_PREFILL, 2, "stream-loaded"},
    [DECODE_CPU] = {"cpu", STAGE_DECODE, 0},
    [DECODE_HYBRID] = {"hybrid", STAGE_DECODE, 1},
    [DECODE_DUAL] = {"dual", STAGE_DECODE, 1},
    [DECODE_PAGED] = {"paged", STAGE_DECODE, 1},
};

enum exec_mode exec_mode_find(enum exec_stage stage, const char *name) {
    int i = MODE_AUTO;
    while (i < EXEC_MODES &&
           ((exec_modes[i].stage && exec_modes[i].stage != stage) || strcmp(exec_modes[i].name, name)))
        i++;
    return (enum exec_mode)i;
}

static const char *const draft_names[DRAFT_KINDS] = {
    [DRAFT_NONE] = "none", [DRAFT_AUTO] = "auto", [DRAFT_LOOKUP] = "lookup",
    [DRAFT_MTP] = "mtp",   [DRAFT_INT4] = "int4", [DRAFT_MODEL] = "model"};

const char *draft_kind_name(enum draft_kind k) { return draft_names[k]; }
enum draft_kind draft_kind_find(const char *name) {
    int i = 0;
    while (i < DRAFT_KINDS && strcmp(draft_names[i], name)) i++;
    return (enum draft_kind)i;
}
