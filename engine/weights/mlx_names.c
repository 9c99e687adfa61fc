/* Reference: the sanitize() of mlx-lm's models, which renames tensors, stacks experts and splits MLA's kv_b. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/arch.h"
#include "engine/weights/mlx.h"

/* Tensors that MLX names otherwise than the publishers: the end of the name in a layer, and the field of tensor_names.
 */
#define FIELD(name) offsetof(struct tensor_names, name)
static const struct renamed {
    const char *end;
    size_t field;
    bool is_expert; /* all experts of a layer */
    bool is_whole;  /* with its suffix */
} renamed[] = {
    {"switch_mlp.gate_proj", FIELD(expert_gate), true, false},
    {"switch_mlp.up_proj", FIELD(expert_up), true, false},
    {"switch_mlp.down_proj", FIELD(expert_down), true, false},
    {"switch_mlp.fc1", FIELD(expert_gate), true, false},
    {"switch_mlp.fc2", FIELD(expert_down), true, false},
    {"experts.gate_proj", FIELD(expert_gate), true, false},
    {"experts.up_proj", FIELD(expert_up), true, false},
    {"experts.down_proj", FIELD(expert_down), true, false},
    {"experts.switch_glu.gate_proj", FIELD(expert_gate), true, false},
    {"experts.switch_glu.up_proj", FIELD(expert_up), true, false},
    {"experts.switch_glu.down_proj", FIELD(expert_down), true, false},
    {"self_attn.embed_q", FIELD(k_b), false, false},
    {"self_attn.unembed_out", FIELD(v_b), false, false},
    {"mlp.gate", FIELD(router), false, false},
    {"mlp.gate.proj", FIELD(router), false, false},
    {"feed_forward.gate_proj", FIELD(dense_gate), false, false},
    {"feed_forward.up_proj", FIELD(dense_up), false, false},
    {"feed_forward.down_proj", FIELD(dense_down), false, false},
    {"mlp.gate.e_score_correction_bias", FIELD(router_bias), false, true},
    {"mlp.e_score_correction_bias", FIELD(router_bias), false, true},
    {"mlp.gate.expert_bias", FIELD(router_bias), false, true},
    {"mlp.shared_experts.gate_proj", FIELD(shared_gate_proj), false, false},
    {"mlp.shared_experts.up_proj", FIELD(shared_up), false, false},
    {"mlp.shared_experts.down_proj", FIELD(shared_down), false, false},
    {"self_attn.q_conv.conv", FIELD(kda_q_conv), false, false},
    {"self_attn.k_conv.conv", FIELD(kda_k_conv), false, false},
    {"self_attn.v_conv.conv", FIELD(kda_v_conv), false, false},
};

/* If `name` is that of a tensor of a layer with the end `end`, and a suffix unless is_whole, writes its pattern. */
static bool pattern_of(char *out, size_t cap, const char *name, const char *prefix, const struct renamed *r) {
    const size_t n = strlen(prefix), end = strlen(r->end);
    int layer, at = 0;
    if (strncmp(name, prefix, n) || sscanf(name + n, "%d.%n", &layer, &at) != 1 || !at) return false;
    const char *rest = name + n + at, *found = strstr(rest, r->end);
    const char *suffix = r->is_whole ? "" : ".weight";
    if (!found || (found > rest && found[-1] != '.') || strcmp(found + end, suffix) || strchr(rest, '%')) return false;
    return (size_t)snprintf(out, cap, "%.*s%%d.%.*s", (int)n, prefix, (int)(found + end - rest), rest) < cap;
}

/* Whether some layer has the tensor that the family's own pattern names. */
static bool has_own(const struct weights *w, const char *pattern, const struct renamed *r) {
    char name[512];
    for (int i = 0; pattern && i < w->config.n_layers; i++) {
        loader_name(name, sizeof name, pattern, i, 0, r->is_whole ? "" : ".weight");
        if (checkpoint_find(&w->files, name)) return true;
    }
    return false;
}

int mlx_names(struct weights *w, struct error *e) {
    struct config *c = &w->config;
    struct tensor_names *names = arena_alloc(&w->arena, sizeof *names);
    struct layout *layout = arena_alloc(&w->arena, sizeof *layout);
    if (!names || !layout) return error_set(e, ERR_MEMORY, "%s: no memory for the names of tensors", w->files.dir);
    *names = *c->names, *layout = *c->layout;
    const char *number = strstr(names->attn_norm, "%d.");
    char prefix[256] = "", pattern[512];
    if (number) snprintf(prefix, sizeof prefix, "%.*s", (int)(number - names->attn_norm), names->attn_norm);
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        const char **field = (const char **)((char *)names + renamed[i].field);
        if (has_own(w, *field, &renamed[i])) continue;
        for (size_t k = 0; k < w->files.n_tensors; k++) {
            if (!pattern_of(pattern, sizeof pattern, w->files.tensors[k].name, prefix, &renamed[i])) continue;
            const size_t n = strlen(pattern);
            if (!(*field = arena_strndup(&w->arena, pattern, n)))
                return error_set(e, ERR_MEMORY, "%s: no memory for the names of tensors", w->files.dir);
            if (renamed[i].is_expert)
                layout->experts = layout->has_suffix = true, layout->gate_up = GATE_UP_SEPARATE,
                layout->transposed_down = layout->transposed_gate_up = layout->transposes_gate_up = false;
            c->split_kv_b |= renamed[i].field == FIELD(k_b);
            break;
        }
    }
    static const struct renamed bias = {.is_whole = true};
    c->router_bias &= has_own(w, names->router_bias, &bias); /* mlx-lm drops that of some families */
    if (c->arch->mlx_adds_one && c->norm == NORM_RMS_PLUS_ONE) c->norm = NORM_RMS;
    c->names = names, c->layout = layout;
    return 0;
}
