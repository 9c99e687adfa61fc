#pragma once
/* Execution modes of prefills and decode batches, and sources of drafts: option values, decisions, predictions, drivers
 * and reports all use these enums. */
enum exec_mode {
    MODE_AUTO, /* option value: the policy chooses for each prefill or batch */
    PREFILL_CPU,
    PREFILL_BLEND,
    PREFILL_SLP,
    PREFILL_DSLP,
    DECODE_CPU,
    DECODE_HYBRID,
    DECODE_DUAL,
    DECODE_PAGED,
    EXEC_MODES
};
enum exec_stage { STAGE_ANY, STAGE_PREFILL, STAGE_DECODE };

struct exec_mode_row {
    const char *name; /* option value and JSON name; unique within its stage */
    enum exec_stage stage;
    int min_devices;
    const char *what; /* description of a prefill mode for --explain; NULL for decode modes */
};
extern const struct exec_mode_row exec_modes[EXEC_MODES];
static inline const char *exec_mode_name(enum exec_mode m) { return exec_modes[m].name; }
/* "auto" belongs to both stages; EXEC_MODES: unknown name */
enum exec_mode exec_mode_find(enum exec_stage stage, const char *name);

/* Source of drafted tokens. INT4: the model itself with INT4 experts; MODEL: a small model of its own. */
enum draft_kind { DRAFT_NONE, DRAFT_AUTO, DRAFT_LOOKUP, DRAFT_MTP, DRAFT_INT4, DRAFT_MODEL, DRAFT_KINDS };
const char *draft_kind_name(enum draft_kind k);
enum draft_kind draft_kind_find(const char *name); /* DRAFT_KINDS: unknown name */
