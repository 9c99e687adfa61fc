/* Sources: each vendor's published config.json; parameter counts from model cards and reports. Where a vendor published
 * both FP8 and BF16, this is the FP8 model. */
#include "engine/model/known.h"
#include "engine/model/config_parse.h"

#include <ctype.h>
#include <string.h>

#include "base/json.h"

#define FP8 \
    "\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128," \
    "128]}"

/* "full_attention" and three, or five with it last, of "sliding_attention" */
#define FULL_3_SLIDING "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
#define FIVE_SLIDING_FULL \
    "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"," \
    "\"sliding_attention\",\"full_attention\""
#define ONES_57 \
    "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1," \
    "1"
/* The dimensions did not change from 3.5 to 3.6. */
#define QWEN_35B \
    "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":248320,\"hidden_size\":2048,\"num_hidden_layers\":40," \
    "\"max_position_embeddings\":262144,\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":256," \
    "\"partial_rotary_factor\":0.25,\"full_attention_interval\":4,\"linear_conv_kernel_dim\":4,\"linear_key_head_" \
    "dim\":128," \
    "\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"moe_intermediate_" \
    "size\":512," \
    "\"shared_expert_intermediate_size\":512,\"num_experts\":256,\"num_experts_per_tok\":8,\"rope_theta\":" \
    "10000000," FP8 "}"

static const struct known_model models[] = {
    {"deepseek-v3", "DeepSeek-V3",
     "{\"model_type\":\"deepseek_v3\",\"vocab_size\":129280,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_"
     "position_embeddings\":163840,"
     "\"num_attention_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":128,"
     "\"intermediate_size\":18432,\"first_k_dense_replace\":3,\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":2048,"
     "\"n_shared_experts\":1,\"n_group\":8,\"topk_group\":4,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,"
     "\"scoring_func\":\"sigmoid\"," FP8 "}",
     DT_E4M3, DT_E4M3, 671, 37},
    {"kimi-k2", "Kimi-K2",
     "{\"model_type\":\"kimi_k2\",\"vocab_size\":163840,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_position_"
     "embeddings\":131072,"
     "\"num_attention_heads\":64,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":128,"
     "\"intermediate_size\":18432,\"first_k_dense_replace\":1,\"n_routed_experts\":384,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":2048,"
     "\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":2.827,\"norm_topk_prob\":true,"
     "\"scoring_func\":\"sigmoid\","
     "\"rope_theta\":50000," FP8 "}",
     DT_E4M3, DT_E4M3, 1040, 32},
    {"kimi-k2-thinking", "Kimi-K2-Thinking",
     "{\"model_type\":\"kimi_k2\",\"vocab_size\":163840,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_position_"
     "embeddings\":262144,"
     "\"num_attention_heads\":64,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":128,"
     "\"intermediate_size\":18432,\"first_k_dense_replace\":1,\"n_routed_experts\":384,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":2048,"
     "\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":2.827,\"norm_topk_prob\":true,"
     "\"scoring_func\":\"sigmoid\","
     "\"rope_theta\":50000}",
     DT_BF16, DT_I4, 1040, 32},
    {"kimi-k3", "Kimi-K3", /* text only */
     "{\"model_type\":\"kimi_k3\",\"text_config\":{\"model_type\":\"kimi_linear\",\"vocab_size\":163840,\"hidden_"
     "size\":7168,\"num_hidden_layers\":93,"
     "\"max_position_embeddings\":1048576,\"num_attention_heads\":96,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_"
     "nope_head_dim\":128,"
     "\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"mla_use_nope\":true,\"mla_use_output_gate\":true,\"intermediate_"
     "size\":33792,"
     "\"first_k_dense_replace\":1,\"num_experts\":896,\"num_experts_per_token\":16,\"moe_intermediate_size\":3072,"
     "\"num_shared_experts\":2,"
     "\"routed_expert_hidden_size\":3584,\"latent_moe_use_norm\":true,\"attn_res_block_size\":12,\"hidden_act\":"
     "\"situ\",\"activation_situ_beta\":4,"
     "\"activation_situ_linear_beta\":25,\"linear_attn_config\":{\"num_heads\":96,\"head_dim\":128,\"short_conv_kernel_"
     "size\":4,"
     "\"gate_lower_bound\":-5,\"use_full_rank_gate\":true,"
     "\"kda_layers\":[1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26,27,29,30,31,33,34,35,37,38,39,41,42,43,45,"
     "46,47,49,50,51,53,54,55,57,"
     "58,59,61,62,63,65,66,67,69,70,71,73,74,75,77,78,79,81,82,83,85,86,87,89,90,91]"
     "},\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"mxfp4-pack-quantized\"}}}",
     DT_BF16, DT_E2M1, 2780, 104.2},
    {"pangu-pro-moe", "Pangu-Pro-MoE",
     "{\"model_type\":\"PanguProMoE\",\"vocab_size\":153376,\"hidden_size\":5120,\"num_hidden_layers\":48,\"max_"
     "position_embeddings\":131072,"
     "\"num_attention_heads\":40,\"num_key_value_heads\":8,\"num_experts\":64,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":1344,"
     "\"shared_expert_intermediate_size\":5376,\"rope_theta\":16000000}",
     DT_BF16, DT_BF16, 72, 16.5},
    {"intern-s1-pro", "Intern-S1-Pro", /* text only */
     "{\"model_type\":\"interns1_pro_text\",\"vocab_size\":155008,\"hidden_size\":4096,\"num_hidden_layers\":94,\"max_"
     "position_embeddings\":262144,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":12288,\"num_"
     "experts\":512,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":1536,\"norm_topk_prob\":true,\"router_n_groups\":8,\"rope_theta\":5000000,"
     "\"rope_scaling\":{\"rope_type\":\"default\",\"fope_init_factor\":0.5,\"fope_sep_head\":true}," FP8 "}",
     DT_E4M3, DT_E4M3, 917, 22},
    {"gigachat-3.5", "GigaChat3.5-432B-A28B", /* without its prediction layers, which the vendor counts */
     "{\"model_type\":\"gigachat3_5\",\"vocab_size\":128256,\"hidden_size\":7168,\"num_hidden_layers\":40,\"max_"
     "position_embeddings\":262144,"
     "\"num_attention_heads\":64,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":128,"
     "\"intermediate_size\":18432,\"first_k_dense_replace\":3,\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":2048,"
     "\"n_shared_experts\":1,\"full_attention_layers\":[3,7,11,15,19,23,27,31,35,39],\"linear_num_key_heads\":32,"
     "\"linear_num_value_heads\":64,"
     "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"swiglu_limit\":10," FP8 "}",
     DT_E4M3, DT_E4M3, 430.6, 26.5},
    {"openpangu-ultra", "openPangu-Ultra-MoE-718B",
     "{\"model_type\":\"pangu_ultra_moe\",\"vocab_size\":153600,\"hidden_size\":7680,\"num_hidden_layers\":61,\"max_"
     "position_embeddings\":131072,"
     "\"num_attention_heads\":128,\"attention_q_lora_dim\":1536,\"attention_kv_lora_dim\":512,\"attention_qk_dim\":128,"
     "\"attention_qk_rope_dim\":64,"
     "\"attention_v_dim\":128,\"intermediate_size\":18432,\"num_dense_layers\":3,\"num_routed_experts\":256,\"num_"
     "experts_per_tok\":8,"
     "\"moe_intermediate_size\":2048,\"num_shared_experts\":1,\"sandwich_norm\":true}",
     DT_BF16, DT_BF16, 718, 39},
    {"step3", "Step3", /* text only */
     "{\"model_type\":\"step3_text\",\"vocab_size\":128815,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_"
     "position_embedding\":65536,"
     "\"num_attention_heads\":64,\"num_attention_groups\":1,\"head_dim\":256,\"share_q_dim\":2048,\"intermediate_"
     "size\":18432,\"moe_num_experts\":48,"
     "\"moe_top_k\":3,\"moe_intermediate_size\":5120,\"share_expert_dim\":5120,\"moe_layers_enum\":\"4,5,6,7,8,9,10,11,"
     "12,13,14,15,16,17,18,19,20,21,22,23,"
     "24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59\"}",
     DT_BF16, DT_BF16, 316, 38},
    {"deepseek-v3.2", "DeepSeek-V3.2",
     "{\"model_type\":\"deepseek_v32\",\"vocab_size\":129280,\"hidden_size\":7168,\"num_hidden_layers\":61,\"max_"
     "position_embeddings\":163840,"
     "\"num_attention_heads\":128,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":128,"
     "\"intermediate_size\":18432,\"first_k_dense_replace\":3,\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":2048,"
     "\"n_shared_experts\":1,\"n_group\":8,\"topk_group\":4,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,"
     "\"scoring_func\":\"sigmoid\","
     "\"index_n_heads\":64,\"index_head_dim\":128,\"index_topk\":2048," FP8 "}",
     DT_E4M3, DT_E4M3, 671, 37},
    {"qwen3-coder-480b", "Qwen3-Coder-480B-A35B",
     "{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":6144,\"num_hidden_layers\":62,\"max_position_"
     "embeddings\":262144,"
     "\"num_attention_heads\":96,\"num_key_value_heads\":8,\"head_dim\":128,\"intermediate_size\":8192,\"num_experts\":"
     "160,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":2560,\"norm_topk_prob\":true,\"rope_theta\":10000000," FP8 "}",
     DT_E4M3, DT_E4M3, 480, 35},
    {"qwen3-next-80b", "Qwen3-Next-80B-A3B",
     "{\"model_type\":\"qwen3_next\",\"vocab_size\":151936,\"hidden_size\":2048,\"num_hidden_layers\":48,\"max_"
     "position_embeddings\":262144,"
     "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"head_dim\":256,\"partial_rotary_factor\":0.25,"
     "\"intermediate_size\":5120,"
     "\"full_attention_interval\":4,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"linear_key_head_dim\":"
     "128,"
     "\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,\"num_experts\":512,\"num_experts_per_tok\":10,\"moe_"
     "intermediate_size\":512,"
     "\"shared_expert_intermediate_size\":512,\"norm_topk_prob\":true,\"rope_theta\":10000000," FP8 "}",
     DT_E4M3, DT_E4M3, 80, 3.9},
    {"qwen3-235b", "Qwen3-235B-A22B",
     "{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":4096,\"num_hidden_layers\":94,\"max_position_"
     "embeddings\":262144,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":12288,\"num_"
     "experts\":128,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":1536,\"norm_topk_prob\":true,\"rope_theta\":5000000," FP8 "}",
     DT_E4M3, DT_E4M3, 235, 22},
    {"qwen3-30b", "Qwen3-30B-A3B",
     "{\"model_type\":\"qwen3_moe\",\"vocab_size\":151936,\"hidden_size\":2048,\"num_hidden_layers\":48,\"max_position_"
     "embeddings\":262144,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":6144,\"num_experts\":"
     "128,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":768,\"norm_topk_prob\":true,\"rope_theta\":10000000," FP8 "}",
     DT_E4M3, DT_E4M3, 30.5, 3.3},
    {"glm-4.5-air", "GLM-4.5-Air",
     "{\"model_type\":\"glm4_moe\",\"vocab_size\":151552,\"hidden_size\":4096,\"num_hidden_layers\":46,\"max_position_"
     "embeddings\":131072,"
     "\"num_attention_heads\":96,\"num_key_value_heads\":8,\"head_dim\":128,\"partial_rotary_factor\":0.5,\"attention_"
     "bias\":true,\"intermediate_size\":10944,"
     "\"first_k_dense_replace\":1,\"n_routed_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":1408,"
     "\"n_shared_experts\":1,"
     "\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.0,\"rope_theta\":1000000," FP8
     "}",
     DT_E4M3, DT_E4M3, 106, 12},
    {"glm-4.6", "GLM-4.6",
     "{\"model_type\":\"glm4_moe\",\"vocab_size\":151552,\"hidden_size\":5120,\"num_hidden_layers\":92,\"max_position_"
     "embeddings\":202752,"
     "\"num_attention_heads\":96,\"num_key_value_heads\":8,\"head_dim\":128,\"partial_rotary_factor\":0.5,\"attention_"
     "bias\":true,\"use_qk_norm\":true,"
     "\"intermediate_size\":12288,\"first_k_dense_replace\":3,\"n_routed_experts\":160,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":1536,"
     "\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":2.5,"
     "\"rope_theta\":1000000," FP8 "}",
     DT_E4M3, DT_E4M3, 355, 32},
    {"glm-5", "GLM-5",
     "{\"model_type\":\"glm_moe_dsa\",\"vocab_size\":154880,\"hidden_size\":6144,\"num_hidden_layers\":78,\"max_"
     "position_embeddings\":202752,"
     "\"num_attention_heads\":64,\"q_lora_rank\":2048,\"kv_lora_rank\":512,\"qk_nope_head_dim\":192,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":256,"
     "\"intermediate_size\":12288,\"first_k_dense_replace\":3,\"n_routed_experts\":256,\"num_experts_per_tok\":8,\"moe_"
     "intermediate_size\":2048,"
     "\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":2.5,\"norm_topk_prob\":true,"
     "\"scoring_func\":\"sigmoid\","
     "\"index_n_heads\":32,\"index_head_dim\":128,\"index_topk\":2048,\"rope_parameters\":{\"rope_theta\":1000000,"
     "\"rope_type\":\"default\"}," FP8 "}",
     DT_E4M3, DT_E4M3, 744, 40},
    {"minimax-m2", "MiniMax-M2",
     "{\"model_type\":\"minimax_m2\",\"vocab_size\":200064,\"hidden_size\":3072,\"num_hidden_layers\":62,\"max_"
     "position_embeddings\":196608,"
     "\"num_attention_heads\":48,\"num_key_value_heads\":8,\"head_dim\":128,\"rotary_dim\":64,\"use_qk_norm\":true,"
     "\"intermediate_size\":1536,"
     "\"num_local_experts\":256,\"num_experts_per_tok\":8,\"use_routing_bias\":true,\"scoring_func\":\"sigmoid\","
     "\"rope_theta\":5000000," FP8 "}",
     DT_E4M3, DT_E4M3, 230, 10},
    {"gpt-oss-120b", "gpt-oss-120b",
     "{\"model_type\":\"gpt_oss\",\"vocab_size\":201088,\"hidden_size\":2880,\"num_hidden_layers\":36,\"max_position_"
     "embeddings\":131072,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,\"intermediate_size\":2880,\"num_local_"
     "experts\":128,\"num_experts_per_tok\":4,"
     "\"sliding_window\":128,\"rope_theta\":150000,\"quantization_config\":{\"quant_method\":\"mxfp4\"}}",
     DT_BF16, DT_E2M1, 116.8, 5.1},
    {"gpt-oss-20b", "gpt-oss-20b",
     "{\"model_type\":\"gpt_oss\",\"vocab_size\":201088,\"hidden_size\":2880,\"num_hidden_layers\":24,\"max_position_"
     "embeddings\":131072,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,\"intermediate_size\":2880,\"num_local_"
     "experts\":32,\"num_experts_per_tok\":4,"
     "\"sliding_window\":128,\"rope_theta\":150000,\"quantization_config\":{\"quant_method\":\"mxfp4\"}}",
     DT_BF16, DT_E2M1, 20.9, 3.6},
    {"deepseek-v4-flash", "DeepSeek-V4-Flash",
     "{\"model_type\":\"deepseek_v4\",\"vocab_size\":129280,\"hidden_size\":4096,\"num_hidden_layers\":43,\"max_"
     "position_embeddings\":1048576,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":1,\"head_dim\":512,\"q_lora_rank\":1024,\"moe_intermediate_"
     "size\":2048,"
     "\"n_routed_experts\":256,\"num_experts_per_tok\":6,\"n_shared_experts\":1,\"scoring_func\":\"sqrtsoftplus\","
     "\"norm_topk_prob\":true,"
     "\"routed_scaling_factor\":1.5,\"compress_rope_theta\":160000,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":"
     "1e-06,"
     "\"num_hash_layers\":3,\"swiglu_limit\":10.0,\"sliding_window\":128,\"o_groups\":8,\"o_lora_rank\":1024,\"index_n_"
     "heads\":64,"
     "\"index_head_dim\":128,\"index_topk\":512,"
     "\"compress_ratios\":[0,0,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,128,4,"
     "128,4,128,4,128,4,128,4,128,4,128,4]}",
     DT_E4M3, DT_E2M1, 284, 13},
    {"qwen3.5-35b", "Qwen3.5-35B-A3B", QWEN_35B, DT_E4M3, DT_E4M3, 35, 3},
    {"qwen3.6-35b", "Qwen3.6-35B-A3B", QWEN_35B, DT_E4M3, DT_E4M3, 35, 3},
    {"qwen3.5-122b", "Qwen3.5-122B-A10B",
     "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":248320,\"hidden_size\":3072,\"num_hidden_layers\":48,"
     "\"max_position_embeddings\":262144,\"num_attention_heads\":32,\"num_key_value_heads\":2,\"head_dim\":256,"
     "\"partial_rotary_factor\":0.25,\"full_attention_interval\":4,\"linear_conv_kernel_dim\":4,\"linear_key_head_"
     "dim\":128,"
     "\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":64,\"moe_intermediate_"
     "size\":1024,"
     "\"shared_expert_intermediate_size\":1024,\"num_experts\":256,\"num_experts_per_tok\":8,\"rope_theta\":"
     "10000000," FP8 "}",
     DT_E4M3, DT_E4M3, 122, 10},
    {"qwen3.5-397b", "Qwen3.5-397B-A17B",
     "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":248320,\"hidden_size\":4096,\"num_hidden_layers\":60,"
     "\"max_position_embeddings\":262144,\"num_attention_heads\":32,\"num_key_value_heads\":2,\"head_dim\":256,"
     "\"partial_rotary_factor\":0.25,\"full_attention_interval\":4,\"linear_conv_kernel_dim\":4,\"linear_key_head_"
     "dim\":128,"
     "\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":64,\"moe_intermediate_"
     "size\":1024,"
     "\"shared_expert_intermediate_size\":1024,\"num_experts\":512,\"num_experts_per_tok\":10,\"rope_theta\":"
     "10000000," FP8 "}",
     DT_E4M3, DT_E4M3, 397, 17},
    {"minimax-m3", "MiniMax-M3", /* text only */
     "{\"model_type\":\"minimax_m3\",\"vocab_size\":200064,\"hidden_size\":6144,\"num_hidden_layers\":60,"
     "\"max_position_embeddings\":1048576,\"num_attention_heads\":64,\"num_key_value_heads\":4,"
     "\"head_dim\":128,\"rotary_dim\":64,\"use_qk_norm\":true,\"qk_norm_type\":\"per_head\","
     "\"use_gemma_norm\":true,\"intermediate_size\":3072,\"moe_intermediate_size\":3072,"
     "\"dense_intermediate_size\":12288,\"shared_intermediate_size\":3072,\"n_shared_experts\":1,"
     "\"num_local_experts\":128,\"num_experts_per_tok\":4,\"use_routing_bias\":true,"
     "\"routed_scaling_factor\":2.0,\"scoring_func\":\"sigmoid\",\"hidden_act\":\"swigluoai\","
     "\"swiglu_alpha\":1.702,\"swiglu_limit\":7.0,\"rope_theta\":5000000,\"moe_layer_freq\":[0,0,0," ONES_57
     "],\"sparse_attention_config\":{\"sparse_attention_freq\":[0,0,0," ONES_57
     "],\"sparse_block_size\":128,\"sparse_disable_index_value\":[0,0,0," ONES_57
     "],\"sparse_index_dim\":128,\"sparse_init_block\":0,\"sparse_local_block\":1,"
     "\"sparse_num_index_heads\":4,\"sparse_score_type\":\"max\",\"sparse_topk_blocks\":16,"
     "\"use_sparse_attention\":true}}",
     DT_BF16, DT_BF16, 428, 23},
    {"step-3.7-flash", "Step-3.7-Flash", /* text only */
     "{\"model_type\":\"step3p7\",\"vocab_size\":128896,\"hidden_size\":4096,\"num_hidden_layers\":45,"
     "\"max_position_embeddings\":65536,\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":128,"
     "\"intermediate_size\":11264,\"sliding_window\":512,\"layer_types\":[" FULL_3_SLIDING FULL_3_SLIDING FULL_3_SLIDING
         FULL_3_SLIDING FULL_3_SLIDING FULL_3_SLIDING FULL_3_SLIDING FULL_3_SLIDING FULL_3_SLIDING FULL_3_SLIDING
             FULL_3_SLIDING
     "\"full_attention\"],\"first_k_dense_replace\":3,\"num_experts\":288,\"num_experts_per_tok\":8,"
     "\"moe_intermediate_size\":1280,\"share_expert_dim\":1280,\"n_shared_experts\":1,"
     "\"scoring_func\":\"sigmoid\",\"use_moe_router_bias\":true,\"moe_router_scaling_factor\":3.0," FP8 "}",
     DT_E4M3, DT_E4M3, 196, 11},
    {"gemma-4-26b", "Gemma 4 26B-A4B", /* text only */
     "{\"model_type\":\"gemma4_text\",\"vocab_size\":262144,\"hidden_size\":2816,\"num_hidden_layers\":30,"
     "\"max_position_embeddings\":262144,\"num_attention_heads\":16,\"num_key_value_heads\":8,"
     "\"num_global_key_value_heads\":2,\"head_dim\":256,\"global_head_dim\":512,\"attention_k_eq_v\":true,"
     "\"intermediate_size\":2112,\"moe_intermediate_size\":704,\"num_experts\":128,\"top_k_experts\":8,"
     "\"enable_moe_block\":true,\"hidden_size_per_layer_input\":0,\"hidden_activation\":\"gelu_pytorch_tanh\","
     "\"final_logit_softcapping\":30.0,\"sliding_window\":1024,\"tie_word_embeddings\":true,\"layer_types\":"
     "[" FIVE_SLIDING_FULL "," FIVE_SLIDING_FULL "," FIVE_SLIDING_FULL "," FIVE_SLIDING_FULL "," FIVE_SLIDING_FULL "],"
     "\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0,\"rope_type\":"
     "\"proportional\"},\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}}}",
     DT_BF16, DT_BF16, 25.2, 3.8},
    {"nemotron-3-nano", "Nemotron 3 Nano",
     "{\"model_type\":\"nemotron_h\",\"vocab_size\":131072,\"max_position_embeddings\":262144,"
     "\"num_hidden_layers\":52,\"mamba_head_dim\":64,\"n_groups\":8,\"ssm_state_size\":128,\"conv_kernel\":4,"
     "\"use_conv_bias\":true,\"head_dim\":128,\"num_key_value_heads\":2,\"n_shared_experts\":1,\"n_group\":1,"
     "\"topk_group\":1,\"norm_topk_prob\":true,\"mlp_hidden_act\":\"relu2\",\"hidden_size\":2688,"
     "\"num_attention_heads\":32,\"mamba_num_heads\":64,\"intermediate_size\":1856,"
     "\"moe_intermediate_size\":1856,\"moe_shared_expert_intermediate_size\":3712,\"n_routed_experts\":128,"
     "\"num_experts_per_tok\":6,\"routed_scaling_factor\":2.5,"
     "\"hybrid_override_pattern\":\"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME\"}",
     DT_BF16, DT_BF16, 31.6, 3.2},
    {"nemotron-3-ultra", "Nemotron 3 Ultra",
     "{\"model_type\":\"nemotron_h\",\"vocab_size\":131072,\"max_position_embeddings\":262144,"
     "\"num_hidden_layers\":108,\"mamba_head_dim\":64,\"n_groups\":8,\"ssm_state_size\":128,\"conv_kernel\":4,"
     "\"use_conv_bias\":true,\"head_dim\":128,\"num_key_value_heads\":2,\"n_shared_experts\":1,\"n_group\":1,"
     "\"topk_group\":1,\"norm_topk_prob\":true,\"mlp_hidden_act\":\"relu2\",\"hidden_size\":8192,"
     "\"num_attention_heads\":64,\"mamba_num_heads\":256,\"intermediate_size\":5120,"
     "\"moe_intermediate_size\":5120,\"moe_latent_size\":2048,\"moe_shared_expert_intermediate_size\":10240,"
     "\"n_routed_experts\":512,\"num_experts_per_tok\":22,\"routed_scaling_factor\":5.0,"
     "\"hybrid_override_pattern\":\"MEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*EMEMEM*EMEMEMEM*EMEMEMEM*"
     "EMEMEM*EMEMEMEM*EMEMEMEME\"}",
     DT_BF16, DT_BF16, 550, 55},
    {"mistral-small-4", "Mistral Small 4",
     "{\"model_type\":\"mistral4\",\"vocab_size\":131072,\"hidden_size\":4096,\"num_hidden_layers\":36,"
     "\"max_position_embeddings\":1048576,\"num_attention_heads\":32,\"num_key_value_heads\":32,\"q_lora_rank\":1024,"
     "\"kv_lora_rank\":256,"
     "\"qk_nope_head_dim\":64,\"qk_rope_head_dim\":64,\"v_head_dim\":128,\"intermediate_size\":12288,\"moe_"
     "intermediate_size\":2048,"
     "\"first_k_dense_replace\":0,\"n_routed_experts\":128,\"num_experts_per_tok\":4,\"n_shared_experts\":1,\"n_"
     "group\":1,\"topk_group\":1,"
     "\"norm_topk_prob\":true,\"routed_scaling_factor\":1.0,\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":"
     "10000,\"factor\":128,"
     "\"original_max_position_embeddings\":8192,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1,\"mscale_all_dim\":1,"
     "\"llama_4_scaling_beta\":0.1}}",
     DT_E4M3, DT_E4M3, 119, 6.5},
    {"qwen3.8-flash-next", "Qwen3.8-Flash-Next", /* text only; the vendor counts the table of n-grams apart */
     "{\"model_type\":\"qwen4_exp\",\"text_config\":{\"vocab_size\":248320,\"hidden_size\":2560,\"num_hidden_layers\":"
     "48,"
     "\"max_position_embeddings\":262144,\"num_attention_heads\":24,\"num_key_value_heads\":2,\"head_dim\":256,"
     "\"full_attention_interval\":4,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,"
     "\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,"
     "\"moe_intermediate_size\":640,\"shared_expert_intermediate_size\":640,\"num_experts\":512,"
     "\"num_experts_per_tok\":10,\"hc_count\":4,\"hc_lowrank\":320,\"ple_layer_ids\":[2],\"ple_embed_dim\":2560,"
     "\"ple_conv_kernel_size\":4,\"ngram_size\":3,\"heads_per_ngram\":8,\"ngram_vocab_size_base\":20000000,"
     "\"make_ngram_vocab_size_divisible_by\":128,\"split_ngram_parts\":128,\"output_gate_type\":\"sigmoid\","
     "\"indexer_n_heads\":4,\"indexer_kv_heads\":1,\"indexer_head_dim\":128,\"indexer_budget\":2048,"
     "\"indexer_compress_ratio\":4,\"eos_token_id\":248044,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_"
     "theta\":"
     "10000000,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10],\"partial_rotary_factor\":0.25}}}",
     DT_BF16, DT_BF16, 176, 6},
    {"glm-5.3-flash", "GLM-5.3-Flash", /* text only; the vendor says 320 with the prediction layer and images */
     "{\"model_type\":\"glm5_next\",\"text_config\":{\"vocab_size\":154880,\"hidden_size\":4096,\"num_hidden_layers\":"
     "45,"
     "\"max_position_embeddings\":1048576,\"num_attention_heads\":64,\"num_key_value_heads\":64,\"head_dim\":0,"
     "\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":256,\"qk_rope_head_dim\":0,\"v_head_dim\":256,"
     "\"intermediate_size\":12288,\"moe_intermediate_size\":2048,\"first_k_dense_replace\":3,\"n_routed_experts\":288,"
     "\"num_experts_per_tok\":8,\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":2.5,"
     "\"norm_topk_prob\":true,\"index_topk\":2048,\"index_head_dim\":128,\"index_n_heads\":32,\"index_kpool\":16,"
     "\"swiglu_limit\":10.0,\"hc_mult\":4,\"hc_sinkhorn_iters\":20,\"hc_eps\":1e-06,"
     "\"linear_attn_config\":{\"num_heads\":64,\"head_dim\":128,\"short_conv_kernel_size\":4,\"gate_lower_bound\":-5.0,"
     "\"kda_layers\":[0,1,2,4,5,6,8,9,10,12,13,14,16,17,18,20,21,22,24,25,26,28,29,30,32,33,34,36,37,38,40,41,42,44],"
     "\"full_attn_layers\":[3,7,11,15,19,23,27,31,35,39,43]}}}",
     DT_BF16, DT_BF16, 314, 18},
    {"hy4", "Hy4",
     "{\"model_type\":\"hy_v4\",\"vocab_size\":120832,\"hidden_size\":6144,\"num_hidden_layers\":78,"
     "\"max_position_embeddings\":1048576,\"num_attention_heads\":64,\"q_lora_rank\":2048,\"kv_lora_rank\":512,"
     "\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,\"v_head_dim\":256,\"intermediate_size\":12288,"
     "\"moe_intermediate_size\":2048,\"first_k_dense_replace\":1,\"n_routed_experts\":256,\"num_experts_per_tok\":8,"
     "\"n_shared_experts\":1,\"n_group\":1,\"topk_group\":1,\"routed_scaling_factor\":2.827,\"norm_topk_prob\":true,"
     "\"index_topk\":2048,\"index_head_dim\":128,\"index_n_heads\":16,\"hc_mult\":4,\"hc_magnitude\":2.0,"
     "\"swiglu_limit\":10.0}",
     DT_BF16, DT_BF16, 770, 49},
    {"sarvam-105b", "Sarvam 105B",
     "{\"model_type\":\"sarvam_mla\",\"vocab_size\":262144,\"hidden_size\":4096,\"num_hidden_layers\":32,\"max_"
     "position_embeddings\":131072,"
     "\"num_attention_heads\":64,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":"
     "128,"
     "\"intermediate_size\":16384,\"moe_intermediate_size\":2048,\"first_k_dense_replace\":1,\"num_experts\":128,\"num_"
     "experts_per_tok\":8,"
     "\"num_shared_experts\":1,\"routed_scaling_factor\":2.5}",
     DT_BF16, DT_BF16, 105, 10.3},
    {"mimo-v2-flash", "MiMo-V2-Flash",
     "{\"model_type\":\"mimo_v2_flash\",\"vocab_size\":152576,\"hidden_size\":4096,\"num_hidden_layers\":48,\"max_"
     "position_embeddings\":262144,"
     "\"num_attention_heads\":64,\"num_key_value_heads\":4,\"head_dim\":192,\"v_head_dim\":128,\"partial_rotary_"
     "factor\":0.334,"
     "\"swa_num_attention_heads\":64,\"swa_num_key_value_heads\":8,\"swa_head_dim\":192,\"swa_v_head_dim\":128,"
     "\"sliding_window\":128,"
     "\"intermediate_size\":16384,\"moe_intermediate_size\":2048,\"n_routed_experts\":256,\"num_experts_per_tok\":8,"
     "\"n_group\":1,"
     "\"topk_group\":1,\"norm_topk_prob\":true,\"scoring_func\":\"sigmoid\",\"rope_theta\":5000000,\"swa_rope_theta\":"
     "10000,"
     "\"hybrid_layer_pattern\":[0,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,1,1,1,1,0,1,"
     "1,1,1,1,0],"
     "\"moe_layer_freq\":[0,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
     "1,1]," FP8 "}",
     DT_E4M3, DT_E4M3, 309, 15},
    {"longcat-flash-lite", "LongCat-Flash-Lite", /* active: without experts that return their input */
     "{\"model_type\":\"longcat_flash_ngram\",\"vocab_size\":131072,\"hidden_size\":3072,\"num_layers\":14,\"max_"
     "position_embeddings\":327680,"
     "\"num_attention_heads\":32,\"q_lora_rank\":1536,\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_"
     "dim\":64,\"v_head_dim\":128,"
     "\"ffn_hidden_size\":6144,\"expert_ffn_hidden_size\":1024,\"n_routed_experts\":256,\"zero_expert_num\":128,\"moe_"
     "topk\":12,"
     "\"routed_scaling_factor\":6.0,\"rope_theta\":5000000,\"emb_neighbor_num\":4,\"emb_split_num\":4,\"ngram_vocab_"
     "size_ratio\":78}",
     DT_BF16, DT_BF16, 68.5, 4.5},
    {"llama-4-scout", "Llama-4-Scout",
     "{\"model_type\":\"llama4_text\",\"vocab_size\":202048,\"hidden_size\":5120,\"num_hidden_layers\":48,\"max_"
     "position_embeddings\":10485760,"
     "\"num_attention_heads\":40,\"num_key_value_heads\":8,\"head_dim\":128,\"intermediate_size\":8192,\"intermediate_"
     "size_mlp\":16384,"
     "\"num_local_experts\":16,\"num_experts_per_tok\":1,\"interleave_moe_layer_step\":1,\"use_qk_norm\":true,"
     "\"attention_chunk_size\":8192,"
     "\"rope_theta\":500000}",
     DT_BF16, DT_BF16, 109, 17},
    {"mixtral-8x7b", "Mixtral-8x7B",
     "{\"model_type\":\"mixtral\",\"vocab_size\":32000,\"hidden_size\":4096,\"num_hidden_layers\":32,\"max_position_"
     "embeddings\":32768,"
     "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"intermediate_size\":14336,\"num_local_experts\":8,\"num_"
     "experts_per_tok\":2,"
     "\"rope_theta\":1000000}",
     DT_BF16, DT_BF16, 46.7, 12.9},
    {"mixtral-8x22b", "Mixtral-8x22B",
     "{\"model_type\":\"mixtral\",\"vocab_size\":32768,\"hidden_size\":6144,\"num_hidden_layers\":56,\"max_position_"
     "embeddings\":65536,"
     "\"num_attention_heads\":48,\"num_key_value_heads\":8,\"intermediate_size\":16384,\"num_local_experts\":8,\"num_"
     "experts_per_tok\":2,"
     "\"rope_theta\":1000000}",
     DT_BF16, DT_BF16, 141, 39},
    {"dbrx", "DBRX",
     "{\"model_type\":\"dbrx\",\"vocab_size\":100352,\"d_model\":6144,\"n_layers\":40,\"max_seq_len\":32768,\"n_"
     "heads\":48,"
     "\"attn_config\":{\"kv_n_heads\":8,\"clip_qkv\":8,\"rope_theta\":500000},"
     "\"ffn_config\":{\"ffn_hidden_size\":10752,\"moe_num_experts\":16,\"moe_top_k\":4}}",
     DT_BF16, DT_BF16, 132, 36},
};

/* In GGUF's mixed formats (q4_k_m) half of the down matrices are wider; the dtype of `down` is one whose size is near
 * the mean of both. */
static const struct known_format formats[] = {
    {"bf16", DT_BF16, DT_BF16, DT_BF16},
    {"fp8", DT_E4M3, DT_E4M3, DT_E4M3},
    {"int4", DT_BF16, DT_I4, DT_I4},
    {"mxfp4", DT_BF16, DT_E2M1, DT_E2M1},
    {"q8_0", DT_Q8_0, DT_Q8_0, DT_Q8_0},
    {"q6_k", DT_Q6_K, DT_Q6_K, DT_Q6_K},
    {"q5_k_m", DT_Q5_K, DT_Q5_K, DT_Q6_K},
    {"q4_k_m", DT_Q4_K, DT_Q4_K, DT_Q5_K},
    {"q4_0", DT_Q4_0, DT_Q4_0, DT_Q4_0},
    {"nvfp4", DT_NVFP4, DT_NVFP4, DT_NVFP4},
    {"iq4_xs", DT_IQ4_XS, DT_IQ4_XS, DT_IQ4_XS},
    {"q3_k_m", DT_Q4_K, DT_Q3_K, DT_Q4_K},
    {"q2_k", DT_Q4_K, DT_Q2_K, DT_Q3_K},
    {"iq3_s", DT_Q4_K, DT_IQ3_S, DT_IQ3_S},
    {"iq3_xxs", DT_Q4_K, DT_IQ3_XXS, DT_IQ3_S},
    {"iq2_xxs", DT_Q4_K, DT_IQ2_XXS, DT_Q2_K},
    {"q2_0", DT_Q2_0, DT_Q2_0, DT_Q2_0},
};
const struct known_format *known_format_at(int i) {
    return i >= 0 && i < (int)(sizeof formats / sizeof *formats) ? &formats[i] : NULL;
}

const struct known_model *known_model_at(int i) {
    return i >= 0 && i < (int)(sizeof models / sizeof *models) ? &models[i] : NULL;
}

/* Compares letters and digits only, without case. */
static bool is_same_name(const char *a, const char *b) {
    for (;; a++, b++) {
        while (*a && !isalnum((unsigned char)*a)) a++;
        while (*b && !isalnum((unsigned char)*b)) b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return false;
        if (!*a) return true;
    }
}
const struct known_model *known_model_find(const char *name) {
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (is_same_name(models[i].name, name) || is_same_name(models[i].title, name)) return &models[i];
    return NULL;
}

const struct known_format *known_format_find(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (is_same_name(formats[i].name, name)) return &formats[i];
    return NULL;
}

int known_model_config(const struct known_model *k, struct config *c, struct error *e) {
    struct arena a = {0};
    struct json root;
    int rc = json_parse(&a, k->config, strlen(k->config), JSON_UNIQUE, k->title, &root, e);
    if (!rc) rc = config_parse(c, &root, k->title, false, e);
    arena_free(&a);
    return rc;
}
