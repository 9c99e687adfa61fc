"""DeepSeek-V3 in torch, small enough to read: what train.py trains and evaluate.py runs.

Module and parameter names are those of the published checkpoints, except that a layer's routed experts are held in two
stacked tensors; export.py takes them apart. The prediction (MTP) layer is layer number num_hidden_layers.
"""

import torch
import torch.nn.functional as F
from torch import nn

BLOCK = 128
ROWS = 64
FP8_MAX = 448.0


def block_scales(w):
    """w [..., R, C] -> scales [..., ceil(R/128), ceil(C/128)], the largest of each block becoming 448."""
    rows, cols = (-(-n // BLOCK) for n in w.shape[-2:])
    padded = F.pad(w.abs(), (0, cols * BLOCK - w.shape[-1], 0, rows * BLOCK - w.shape[-2]))
    amax = padded.view(*w.shape[:-2], rows, BLOCK, cols, BLOCK).amax(dim=(-3, -1))
    return amax.clamp(min=1e-12) / FP8_MAX


def spread_scales(scales, shape):
    """Scales of blocks -> a factor for each element."""
    wide = scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return wide[..., : shape[-2], : shape[-1]]


def fake_quantised(w):
    """w as it will read back from FP8; the gradient passes straight through."""
    with torch.no_grad():
        factor = spread_scales(block_scales(w), w.shape)
        error = (w / factor).to(torch.float8_e4m3fn).float() * factor - w
    return w + error


def drop(x, share, training):
    """Dropout of [B, T, H] with one mask for all positions of an example."""
    if not training or not share:
        return x
    return x * ((torch.rand(len(x), 1, x.shape[2]) >= share).float() / (1 - share))


class Norm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class Linear(nn.Module):
    """A projection; published in FP8 when `fp8`."""

    def __init__(self, n_in, n_out, std=None, fp8=True):
        super().__init__()
        self.weight, self.fp8, self.quantise = nn.Parameter(torch.empty(n_out, n_in)), fp8, False
        nn.init.normal_(self.weight, std=std or n_in**-0.5)

    def forward(self, x):
        return F.linear(x, fake_quantised(self.weight) if self.quantise else self.weight)


def rotate(x, cos, sin):
    """x [..., T, rope]: adjacent elements form a pair, as in the published weights."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Multi-head latent attention, expanded form."""

    def __init__(self, c):
        super().__init__()
        h, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.nope, self.rope, self.v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        self.latent = c["kv_lora_rank"]
        self.q_a_proj = Linear(h, c["q_lora_rank"])
        self.q_a_layernorm = Norm(c["q_lora_rank"], 1e-6)
        self.q_b_proj = Linear(c["q_lora_rank"], self.heads * (self.nope + self.rope))
        self.kv_a_proj_with_mqa = Linear(h, self.latent + self.rope)
        self.kv_a_layernorm = Norm(self.latent, 1e-6)
        self.kv_b_proj = Linear(self.latent, self.heads * (self.nope + self.v))
        self.o_proj = Linear(self.heads * self.v, h, std=(self.heads * self.v) ** -0.5 / 3)
        self.theta = c["rope_theta"]

    def forward(self, x):
        batch, length, _ = x.shape
        freq = self.theta ** (-torch.arange(0, self.rope, 2).float() / self.rope)
        angle = torch.arange(length).float()[:, None] * freq
        cos, sin = angle.cos(), angle.sin()
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(batch, length, self.heads, -1).transpose(1, 2)
        latent, key_rope = self.kv_a_proj_with_mqa(x).split((self.latent, self.rope), dim=-1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(batch, length, self.heads, -1).transpose(1, 2)
        key, value = kv.split((self.nope, self.v), dim=-1)
        key_rope = rotate(key_rope.float(), cos, sin)[:, None].expand(-1, self.heads, -1, -1).to(key.dtype)
        q_rope = rotate(q[..., self.nope :].float(), cos, sin).to(q.dtype)
        q = torch.cat((q[..., : self.nope], q_rope), dim=-1)
        out = F.scaled_dot_product_attention(q, torch.cat((key, key_rope), dim=-1), value, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, hidden, inter):
        super().__init__()
        self.gate_proj, self.up_proj = Linear(hidden, inter), Linear(hidden, inter)
        self.down_proj = Linear(inter, hidden, std=inter**-0.5 / 3)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(c["n_routed_experts"], c["hidden_size"]) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(c["n_routed_experts"]))
        self.groups, self.keep, self.top = c["n_group"], c["topk_group"], c["num_experts_per_tok"]
        self.factor = c["routed_scaling_factor"]
        self.load = torch.zeros(c["n_routed_experts"])

    def forward(self, x):
        """x [T, hidden] -> experts [T, top], weights [T, top]"""
        with torch.autocast("cpu", enabled=False):
            score = torch.sigmoid(F.linear(x.float(), self.weight))
        with torch.no_grad():
            choice = score + self.e_score_correction_bias
            grouped = choice.view(len(x), self.groups, -1)
            best = grouped.topk(2, dim=-1).values.sum(-1).topk(self.keep, dim=-1).indices
            masked = torch.ones(len(x), self.groups, dtype=torch.bool).scatter_(1, best, False)
            chosen = grouped.masked_fill(masked[..., None], -torch.inf).flatten(1).topk(self.top, dim=-1).indices
            if self.training:
                self.load += torch.bincount(chosen.flatten(), minlength=len(self.load))
        weight = score.gather(1, chosen)
        return chosen, weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.factor

    def balance(self, rate):
        """The loss-free balancing of DeepSeek-V3: raise the bias of idle experts, lower that of busy ones."""
        self.e_score_correction_bias += rate * torch.sign(self.load.mean() - self.load)
        self.load.zero_()


class Experts(nn.Module):
    """All routed experts of a layer: gate_up [E, 2 inter, hidden], down [E, hidden, inter]."""

    def __init__(self, c):
        super().__init__()
        n, hidden, inter = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.gate_up = nn.Parameter(torch.randn(n, 2 * inter, hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(n, hidden, inter) * inter**-0.5 / 3)
        self.inter, self.quantise = inter, False

    def weights(self):
        if not self.quantise:
            return self.gate_up, self.down
        n, hidden = len(self.gate_up), self.gate_up.shape[-1]
        gate_up = fake_quantised(self.gate_up.view(n, 2, self.inter, hidden)).view(n, -1, hidden)
        return gate_up, fake_quantised(self.down)

    def forward(self, x, chosen, weight):
        """Tokens are grouped by expert. Groups are filled up to a multiple of ROWS (with token 0 at weight 0), since
        matrix libraries prepare a kernel for each new shape."""
        experts, top = len(self.gate_up), chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=experts)
        filled = (counts + ROWS - 1) // ROWS * ROWS
        start = (filled.cumsum(0) - filled) - (counts.cumsum(0) - counts)
        place = torch.arange(len(order)) + start.repeat_interleave(counts)
        total = int(filled.sum())
        token = torch.zeros(total, dtype=torch.long).index_copy(0, place, order // top)
        share = torch.zeros(total).index_copy(0, place, weight.flatten().index_select(0, order))
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        gate_up, down = (w.to(dtype).unbind(0) for w in self.weights())
        rows_of = x.to(dtype).index_select(0, token).split(filled.tolist())
        share_of = share[:, None].to(dtype).split(filled.tolist())
        out = []
        for e, rows in enumerate(rows_of):
            if len(rows):
                gate, up = F.linear(rows, gate_up[e]).chunk(2, dim=-1)
                out.append(F.linear(F.silu(gate) * up * share_of[e], down[e]))
        return torch.zeros(len(x), x.shape[1]).index_add(0, token, torch.cat(out).float())


class Moe(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate, self.experts = Router(c), Experts(c)
        self.shared_experts = Mlp(c["hidden_size"], c["moe_intermediate_size"] * c["n_shared_experts"])

    def forward(self, x):
        flat = x.flatten(0, -2)
        return (self.experts(flat, *self.gate(flat)) + self.shared_experts(flat)).view(x.shape)


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.input_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = Norm(c["hidden_size"], c["rms_norm_eps"])
        dense = index < c["first_k_dense_replace"]
        self.mlp = Mlp(c["hidden_size"], c["intermediate_size"]) if dense else Moe(c)
        self.drop = 0.0

    def forward(self, x):
        x = x + drop(self.self_attn(self.input_layernorm(x)).float(), self.drop, self.training)
        return x + drop(self.mlp(self.post_attention_layernorm(x)).float(), self.drop, self.training)


class PredictionLayer(Layer):
    """Predicts the token after the next from h(t) and the next token; shares embedding and head with the model."""

    def __init__(self, c, index):
        super().__init__(c, index)
        hidden = c["hidden_size"]
        self.enorm, self.hnorm = Norm(hidden, c["rms_norm_eps"]), Norm(hidden, c["rms_norm_eps"])
        self.eh_proj = Linear(2 * hidden, hidden, fp8=False)
        self.shared_head = nn.ModuleDict({"norm": Norm(hidden, c["rms_norm_eps"])})

    def predict(self, hidden, next_embedding):
        x = self.eh_proj(torch.cat((self.enorm(next_embedding), self.hnorm(hidden)), dim=-1)).float()
        return self.shared_head["norm"](self.forward(x))


class Body(nn.Module):
    def __init__(self, c):
        super().__init__()
        n = c["num_hidden_layers"]
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList([Layer(c, i) for i in range(n)] + [PredictionLayer(c, n)])
        self.norm = Norm(c["hidden_size"], c["rms_norm_eps"])


class Ember(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.drop = config, 0.0
        self.model = Body(config)
        self.lm_head = Linear(config["hidden_size"], config["vocab_size"], fp8=False)

    def set_dropout(self, share):
        self.drop = share
        for layer in self.model.layers:
            layer.drop = share

    def set_quantise(self, on):
        for module in self.modules():
            if isinstance(module, Experts) or isinstance(module, Linear) and module.fp8:
                module.quantise = on

    def routers(self):
        return [m for m in self.modules() if isinstance(m, Router)]

    def hidden(self, ids):
        """ids [B, T] -> the last layer's output, before and after the final norm"""
        x = drop(self.model.embed_tokens(ids), self.drop, self.training)
        for layer in self.model.layers[:-1]:
            x = layer(x)
        return x, self.model.norm(x)

    def predicted(self, hidden, ids):
        """The prediction layer's normed state [B, T-1, H]: position t looks ahead to token t + 2."""
        return self.model.layers[-1].predict(hidden[:, :-1], self.model.embed_tokens(ids[:, 1:]))

    def forward(self, ids):
        return self.lm_head(self.hidden(ids)[1])


@torch.no_grad()
def generate(model, prompts, end, limit=160):
    """Greedy continuations of lists of ids, up to `end`. All prompts advance together, padded at the right."""
    rows = [list(p) for p in prompts]
    live = list(range(len(rows)))
    for _ in range(limit):
        width = max(len(rows[i]) for i in live)
        ids = torch.tensor([rows[i] + [0] * (width - len(rows[i])) for i in live])
        state = model.hidden(ids)[1]
        last = state[range(len(live)), [len(rows[i]) - 1 for i in live]]
        best = model.lm_head(last).argmax(-1).tolist()
        for i, token in zip(live, best):
            rows[i].append(token)
        live = [i for i, token in zip(live, best) if token != end]
        if not live:
            break
    return [row[len(p) :] for row, p in zip(rows, prompts)]
