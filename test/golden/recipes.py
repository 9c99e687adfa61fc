"""Recipes of checkpoints for vary.py, in the form of ../shared/fixtures: families that the fixtures lack."""
import make_fixture as mf
import families_a as a

# What every config has. The embedding and the blocks' outputs are small, so that norm_eps matters.
BASE = {**mf.COMMON, "max_position_embeddings": 4096, "num_hidden_layers": 4, "pad_token_id": 0}


def flex_olmo():
    return a.Recipe(
        model="FlexOlmoForCausalLM",
        config={
            **BASE, "architectures": ["FlexOlmoForCausalLM"], "hidden_size": 128, "intermediate_size": 72, "model_type": "flex_olmo", "norm_topk_prob": False,
            "num_attention_heads": 4, "num_experts": 7, "num_experts_per_tok": 3, "num_key_value_heads": 4, "output_router_logits": False, "rms_norm_eps": 1e-6,
            "rope_scaling": None, "rope_theta": 500000.0, "router_aux_loss_coef": 0.01,
        },
        tokenizer="olmo", special=a.sandwich("post_attention_layernorm", "post_feedforward_layernorm"),
    )


FAMILIES = (flex_olmo,)
mf.RECIPES.update({f.__name__: f for f in FAMILIES})
