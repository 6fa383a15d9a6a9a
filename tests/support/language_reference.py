"""Language models again, as short as their equations allow: one text at a time, no cache, no fused kernels.

`ilr` reads published key names. Takase & Kiyono's models are compared with fairseq's own language model instead, which
has a layer for every depth.
"""

import torch
from fairseq.models import FairseqLanguageModel
from fairseq.models.transformer_lm import TransformerLanguageModel, TransformerLanguageModelConfig
from fairseq.tasks.language_modeling import LanguageModelingTask
from torch import Tensor, nn

Weights = dict[str, Tensor]


# Intra-Layer Recurrence


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def turned(x: Tensor) -> Tensor:
    """(T, D) as complex numbers of half the width, each turned by its place times its rate."""
    half = x.size(1) // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * rates
    z = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag], dim=1)


def slope(head: int, heads: int) -> float:
    """Head from 0."""
    power = 1
    while power < heads:
        power *= 2
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return (slopes if power == heads else slopes[1::2] + slopes[0::2])[head]


def llama_attention(w: Weights, name: str, x: Tensor, heads: int, position: str) -> Tensor:
    qkv = [(x @ w[f"{name}.{which}_proj.weight"].T).chunk(heads, 1) for which in "qkv"]
    outputs = []
    for head, (q, k, v) in enumerate(zip(*qkv)):
        if position == "rope":
            q, k = turned(q), turned(k)
        scores = q @ k.T / q.size(1) ** 0.5
        if position == "alibi":
            place = torch.arange(len(x), dtype=x.dtype)
            scores = scores + slope(head, heads) * (place[None, :] - place[:, None])
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        outputs.append(scores.masked_fill(later, float("-inf")).softmax(-1) @ v)
    return torch.cat(outputs, dim=1) @ w[f"{name}.o_proj.weight"].T


def llama_layer(w: Weights, index: int, x: Tensor, heads: int, position: str) -> Tensor:
    one = f"model.layers.{index}"
    n = rms_norm(x, w[f"{one}.input_layernorm.weight"])
    x = x + llama_attention(w, f"{one}.self_attn", n, heads, position)
    n = rms_norm(x, w[f"{one}.post_attention_layernorm.weight"])
    gate = n @ w[f"{one}.mlp.gate_proj.weight"].T
    up = n @ w[f"{one}.mlp.up_proj.weight"].T
    return x + (gate * torch.sigmoid(gate) * up) @ w[f"{one}.mlp.down_proj.weight"].T


def ilr(w: Weights, tokens: Tensor, heads: int, position: str, counts=None, loops=1, layers=0, inject=False) -> Tensor:
    """Logits of one text: (T,) -> (T, vocabulary). Either counts, one a layer, or loops over so many layers."""
    embedding = x = w["model.embed_tokens.weight"][tokens]
    if position == "learned":
        embedding = x = x + w["model.embed_positions.weight"][: len(tokens)]
    for loop in range(loops if counts is None else 0):
        if loop > 0 and inject:
            x = x + embedding
        for index in range(layers):
            x = llama_layer(w, index, x, heads, position)
    for index, count in enumerate(counts or ()):
        first = x
        for number in range(count):
            x = llama_layer(w, index, x + first if inject and number > 0 else x, heads, position)
    return rms_norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


# Takase & Kiyono


def fairseq_model(args, task: LanguageModelingTask) -> FairseqLanguageModel:
    """fairseq's own language model of the same shape, with a layer for every depth and no dropout."""
    adaptive = args.adaptive_softmax_cutoff != "none"
    config = TransformerLanguageModelConfig(
        decoder_embed_dim=args.decoder_embed_dim,
        decoder_input_dim=args.decoder_embed_dim,
        decoder_output_dim=args.decoder_embed_dim,
        decoder_ffn_embed_dim=args.decoder_ffn_embed_dim,
        decoder_layers=args.decoder_layers,
        decoder_attention_heads=args.decoder_attention_heads,
        decoder_normalize_before=True,
        no_decoder_final_norm=True,
        dropout=0.0,
        adaptive_input=args.adaptive_input_cutoff != "none",
        adaptive_input_cutoff=args.adaptive_input_cutoff,
        adaptive_softmax_cutoff=args.adaptive_softmax_cutoff if adaptive else None,
        tie_adaptive_weights=args.tie_adaptive_weights,
        tie_adaptive_proj=args.tie_adaptive_proj,
        share_decoder_input_output_embed=args.share_decoder_input_output_embed,
        tokens_per_sample=task.args.tokens_per_sample,
        max_target_positions=task.args.tokens_per_sample,
    )
    return TransformerLanguageModel.build_model(config, task).eval()


def copy_into_fairseq(model: nn.Module, upstream: FairseqLanguageModel) -> FairseqLanguageModel:
    """Gives every depth of fairseq's model the weights of the layer that our order assigns to it."""
    own, theirs = model.state_dict(), {}
    for depth, which in enumerate(model.decoder.stack.loop.order):
        ours, to = f"decoder.stack.loop.blocks.{which}", f"decoder.layers.{depth}"
        for kind in ("weight", "bias"):
            for row, name in enumerate("qkv"):
                theirs[f"{to}.self_attn.{name}_proj.{kind}"] = own[f"{ours}.self_attn.qkv.{kind}"].chunk(3)[row]
            theirs[f"{to}.self_attn.out_proj.{kind}"] = own[f"{ours}.self_attn.out.{kind}"]
            theirs[f"{to}.self_attn_layer_norm.{kind}"] = own[f"{ours}.norms.0.{kind}"]
            theirs[f"{to}.fc1.{kind}"] = own[f"{ours}.ffn.up.{kind}"]
            theirs[f"{to}.fc2.{kind}"] = own[f"{ours}.ffn.down.{kind}"]
            theirs[f"{to}.final_layer_norm.{kind}"] = own[f"{ours}.norms.1.{kind}"]
    theirs |= {key: tensor for key, tensor in own.items() if not key.startswith("decoder.stack.")}
    if upstream.decoder.share_input_output_embed:
        theirs["decoder.output_projection.weight"] = own["decoder.embed_tokens.weight"]
    untold = upstream.double().load_state_dict(theirs, strict=False)
    assert not untold.unexpected_keys
    assert not {key for key in untold.missing_keys if "version" not in key and not is_alias(upstream, key, theirs)}
    return upstream


def is_alias(model: nn.Module, key: str, told: Weights) -> bool:
    """Whether a tensor is stored under one of these keys as well."""
    tensors = model.state_dict()
    return tensors[key].data_ptr() in {tensors[other].data_ptr() for other in told} or key.endswith("_float_tensor")
