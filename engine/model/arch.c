#include "engine/model/arch.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const struct arch *const table[] = {
    &arch_deepseek_v3,
    &arch_kimi_k25,
    &arch_sarvam_mla,
    &arch_deepseek_v2,
    &arch_deepseek_v1,
    &arch_qwen3_moe,
    &arch_mixtral,
    &arch_qwen2_moe,
    &arch_glm4_moe,
    &arch_minimax_m2,
    &arch_gpt_oss,
    &arch_phimoe,
    &arch_dbrx,
    &arch_qwen3_next,
    &arch_qwen3_5_moe,
    &arch_qwen3_5_moe_text,
    &arch_deepseek_v32,
    &arch_deepseek_v4,
    &arch_deepseek_v41,
    &arch_glm_moe_dsa,
    &arch_olmoe,
    &arch_flex_olmo,
    &arch_granitemoe,
    &arch_granitemoeshared,
    &arch_granitemoe_swa,
    &arch_ernie4_5_moe,
    &arch_ernie4_5_vl_moe,
    &arch_ernie4_5_moe_vl,
    &arch_glm4_moe_lite,
    &arch_glm4v_moe,
    &arch_solar_open,
    &arch_solar_open2,
    &arch_dots1,
    &arch_muse_spark,
    &arch_muse_glimmer,
    &arch_dots3_note,
    &arch_dots3_note_text,
    &arch_hy_v3,
    &arch_bailing_moe,
    &arch_sarvam_moe,
    &arch_param2moe,
    &arch_hunyuan_v1_moe,
    &arch_laguna,
    &arch_mellum,
    &arch_mimo_v2_flash,
    &arch_mimo_v2,
    &arch_step3_vl,
    &arch_step3_text,
    &arch_step3p5,
    &arch_step3p7,
    &arch_mistral4,
    &arch_mistral4_text,
    &arch_mistral_large3,
    &arch_mistral_large4,
    &arch_qwen3_vl_moe,
    &arch_interns1_pro,
    &arch_qwen3_omni_moe,
    &arch_qwen3_omni_moe_thinker,
    &arch_llama4,
    &arch_llama4_text,
    &arch_longcat_flash,
    &arch_longcat_flash_ngram,
    &arch_axk1,
    &arch_afmoe,
    &arch_exaone_moe,
    &arch_exaone4,
    &arch_exaone4_5,
    &arch_youtu,
    &arch_nanochat,
    &arch_minicpm,
    &arch_minicpm3,
    &arch_nemotron,
    &arch_jais2,
    &arch_cohere2_moe,
    &arch_cohere2,
    &arch_hunyuan_v1_dense,
    &arch_lfm2_moe,
    &arch_minimax,
    &arch_granitemoehybrid,
    &arch_bamba,
    &arch_falcon_h1,
    &arch_kimi_linear,
    &arch_kimi_k3,
    &arch_k2_horizon,
    &arch_maple,
    &arch_nemotron_nas,
    &arch_spark2_5,
    &arch_apertus,
    &arch_apertus1p5,
    &arch_apertus1p5_text,
    &arch_iquest_q1,
    &arch_bailing_hybrid,
    &arch_bailing_moe_linear,
    &arch_glm5_next,
    &arch_gemma4,
    &arch_gemma4_text,
    &arch_gemma4_unified,
    &arch_gemma4_unified_text,
    &arch_hy_v4,
    &arch_hy_v4_vl,
    &arch_inkling,
    &arch_inkling_text,
    &arch_inkling2,
    &arch_inkling2_text,
    &arch_inkling2_loop,
    &arch_inkling2_loop_text,
    &arch_qwen4_exp,
    &arch_qwen4_exp_text,
    &arch_nemotron_h,
    &arch_jamba,
    &arch_zaya,
    &arch_minimax_m3,
    &arch_minimax_m3_text,
    &arch_minimax_m3_published_text,
    &arch_axk2,
    &arch_flint,
    &arch_beam,
    &arch_kolibri1,
    &arch_lara_mini,
    &arch_arctic,
    &arch_klear,
    &arch_openpangu,
    &arch_pangu_pro,
    &arch_gigachat35,
    &arch_smallthinker,
    &arch_grok,
    &arch_aria,
    &arch_aria_text,
    /* without experts */
    &arch_llama,
    &arch_arcee,
    &arch_exaone,
    &arch_internlm2,
    &arch_internlm3,
    &arch_helium,
    &arch_cwm,
    &arch_mistral,
    &arch_mistral3,
    &arch_ministral,
    &arch_ministral3,
    &arch_qwen2,
    &arch_qwen2_vl,
    &arch_qwen2_vl_text,
    &arch_qwen2_5_omni,
    &arch_mimo,
    &arch_qwen3,
    &arch_qwen3_vl,
    &arch_lfm2,
    &arch_lfm3,
    &arch_lfm3_vl,
    &arch_ernie4_5,
    &arch_qwen3_5,
    &arch_qwen3_5_text,
    &arch_smollm3,
    &arch_phi3,
    &arch_phi4mm,
    &arch_gemma,
    &arch_gemma2,
    &arch_vaultgemma,
    &arch_gemma3,
    &arch_gemma3_text,
    &arch_glm,
    &arch_glm4,
    &arch_glm4v,
    &arch_glm4v_text,
    &arch_olmo,
    &arch_olmo2,
    &arch_olmo3,
    &arch_seed_oss,
    &arch_granite,
    &arch_granite_swa,
    &arch_hyperclovax,
    &arch_cohere,
    &arch_stablelm,
    &arch_starcoder2,
    &arch_phi,
    &arch_gpt_neox,
    &arch_falcon,
};

static bool has_text_type(const struct arch *a, const struct json *root) {
    const struct json *text = a->text_type ? json_get(root, a->text_config_key) : NULL;
    return !a->text_type || !root ||
           (text && text->type == JSON_OBJECT && json_is(json_get(text, "model_type"), a->text_type));
}
const struct arch *arch_find(const struct json *model_type, const struct json *root) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (const char *const *t = table[i]->model_types; *t; t++)
            if (json_is(model_type, *t) && has_text_type(table[i], root)) return table[i];
    return NULL;
}

static const char *const text_members[] = {"text_config", "llm_config", "language_config", NULL};
/* Returns the type of the text model that a member describes; NULL: there is none. */
static const struct json *text_type(const struct json *root, const char *member) {
    const struct json *text = json_get(root, member),
                      *type = text && text->type == JSON_OBJECT ? json_get(text, "model_type") : NULL;
    return type && type->type == JSON_STRING ? type : NULL;
}
const struct json *arch_text_type(const struct json *root) {
    const struct json *type = NULL;
    for (const char *const *m = text_members; *m && !type; m++) type = text_type(root, *m);
    return type;
}
/* Whether a class is named after a model type: DeepseekV4ForCausalLM after deepseek_v4. */
static bool is_class_of(const struct json *name, const char *type) {
    uint32_t i = 0;
    for (; *type; type++) {
        if (*type == '_') continue;
        if (i == name->n || tolower((unsigned char)name->string[i++]) != *type) return false;
    }
    const size_t left = name->n - i;
    return left == strlen("ForCausalLM") && !memcmp(name->string + i, "ForCausalLM", left);
}
const struct arch *arch_find_class(const struct json *architectures) {
    const struct json *name =
        architectures && architectures->type == JSON_ARRAY && architectures->n == 1 ? json_at(architectures, 0) : NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table && name; i++)
        for (const char *const *t = table[i]->architectures; t && *t; t++)
            if (json_is(name, *t)) return table[i];
    for (size_t i = 0; i < sizeof table / sizeof *table && name && name->type == JSON_STRING; i++)
        for (const char *const *t = table[i]->model_types; *t && !table[i]->text_config_key; t++)
            if (is_class_of(name, *t)) return table[i];
    return NULL;
}

const struct arch *arch_find_text(const struct json *model_type, const struct json *root, const char **member,
                                  const char **why) {
    static const char *const both_ways[] = {"paligemma", "colpali"}; /* a token of the prompt sees later ones */
    for (size_t i = 0; i < sizeof both_ways / sizeof *both_ways; i++)
        if (json_is(model_type, both_ways[i])) {
            *why = "its prompts see later tokens, too";
            return NULL;
        }
    for (const char *const *m = text_members; *m; m++) {
        const struct json *type = text_type(root, *m);
        const struct arch *a = type ? arch_find(type, json_get(root, *m)) : NULL;
        if (!a || a->text_config_key) continue;
        *member = *m;
        return a;
    }
    return NULL;
}

void arch_list(struct buf *out) {
    const char *separator = "";
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        for (const char *const *t = table[i]->model_types; *t; t++, separator = ", ") {
            const char *text = table[i]->text_type;
            buf_fmt(out, "%s%s%s%s", separator, *t, text ? " with " : "", text ? text : "");
        }
}
