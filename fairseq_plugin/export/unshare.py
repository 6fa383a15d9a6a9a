"""Conversion of a looped model to fairseq's own `transformer`, `transformer_lm` or `s2t_transformer`.

Every pass becomes a layer, see :mod:`recurrence.weights.unshare`. Outside the stack:

* Positions that are not fairseq's sinusoids become learned positions.
* fairseq has no output bias. Normalised features sum to 0, so with a weight and a bias of 1, a LayerNorm's output has
  mean 1. The last LayerNorm gets these values, its own weight and bias are folded into the output matrix, and the
  output bias is distributed over the matrix's columns.
* The convolutions for speech are copied. fairseq's see the padding of a batch and ours do not, so the last frames of a
  padded utterance differ.
"""

import argparse
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_REGISTRY, BaseFairseqModel
from torch import nn

from fairseq_plugin.embedding import BorrowingLinear
from fairseq_plugin.export.upstream import (
    LANGUAGE,
    SPEECH,
    TRANSLATION,
    language_defaults,
    layer_pieces,
    max_positions,
)
from fairseq_plugin.language_model import LanguageModel
from fairseq_plugin.models.speech import OF_THE_DATA
from fairseq_plugin.options import SIDES
from fairseq_plugin.seq2seq import LIMITS
from recurrence import position
from recurrence.causal import CausalStack
from recurrence.loop import Loop
from recurrence.position import AttentionPositions
from recurrence.weights import unshare
from recurrence.weights.names import StateDict, to_theirs

EPSILON = 1e-5  # of fairseq's LayerNorms
# Options with the same meaning in fairseq.
KEPT = {"dropout", "attention_dropout", "activation_dropout", "activation_fn", "no_token_positional_embeddings"}
KEPT |= {"no_scale_embedding", "layernorm_embedding", "share_decoder_input_output_embed", "share_all_embeddings"}
KEPT |= {"checkpoint_activations", "adaptive_softmax_dropout", "tie_adaptive_weights", "tie_adaptive_proj"}
KEPT |= {f"adaptive_{which}_factor" for which in ("input", "softmax")} | set(LIMITS.values())
OF_A_SIDE = ("embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before", "learned_pos")
KEPT |= {f"{side}_{name}" for side in SIDES for name in OF_A_SIDE}


def unshared(model: BaseFairseqModel, args: argparse.Namespace) -> tuple[argparse.Namespace, StateDict]:
    """Options and weights of fairseq's own model with the same output.

    Args:
        model: a trained model of this plugin; not changed.
        args: its options, possibly with those of the training run.

    Raises:
        ValueError: naming the architecture and what fairseq cannot represent.
    """
    if isinstance(model, LanguageModel):
        convert = _language
    elif model.reads_text:
        convert = _translation
    else:
        convert = _speech
    try:
        return convert(model, args)
    except ValueError as error:
        raise ValueError(f"--arch {args.arch}: cannot become fairseq's own: {error}") from None


def _translation(model: BaseFairseqModel, args: argparse.Namespace) -> tuple[argparse.Namespace, StateDict]:
    encoder, decoder = model.encoder, model.decoder
    if encoder.level_table is not None:
        raise ValueError("positions and depths added before every pass: an upstream layer adds nothing to its input")
    _check_positions(encoder.positions, args)
    values: dict[str, Any] = dict(arch=TRANSLATION, encoder_embed_path=None, decoder_embed_path=None)
    weights: StateDict = {}
    scaled = False
    for side, part, limit in (("encoder", encoder, "source"), ("decoder", decoder, "target")):
        stack, sizes, factor = _stack(side, part.loop, part.layer_norm)
        inputs, learned = _inputs(side, part, max_positions(args, limit), factor)
        weights |= {**stack, **inputs}
        scaled = scaled or (part.inputs.layernorm is None and not unshare.is_one(factor))
        values |= {f"{side}_learned_pos": learned, **sizes}
    values["no_token_positional_embeddings"] = encoder.inputs.table is None and encoder.inputs.embed_positions is None
    weights |= _output(decoder.output_projection, weights)
    tied = decoder.output_projection.bias is None and not scaled
    for name in ("share_all_embeddings", "share_decoder_input_output_embed"):
        values[name] = tied and getattr(args, name)
    return _options(args, values), weights


def _speech(model: BaseFairseqModel, args: argparse.Namespace) -> tuple[argparse.Namespace, StateDict]:
    encoder, decoder = model.encoder, model.decoder
    _check_positions(encoder.positions, args)
    if encoder.inputs.table is None:
        raise ValueError("--position=none: fairseq adds sinusoids to the frames")
    frames = {f"encoder.subsample.{key}": tensor for key, tensor in encoder.inputs.subsample.state_dict().items()}
    layers, encoder_sizes, _ = _stack("encoder", encoder.loop, encoder.layer_norm)
    del layers["encoder.version"]
    stack, decoder_sizes, factor = _stack("decoder", decoder.loop, decoder.layer_norm)
    if not unshare.is_one(factor):
        raise ValueError(f"norm_eps={args.norm_eps}: must be {EPSILON}, as fairseq has it")
    inputs, _ = _inputs("decoder", decoder, max_positions(args, "target"), factor)
    renamed = {key.replace(".layers.", ".transformer_layers."): tensor for key, tensor in layers.items()}
    weights = {**frames, **renamed, **stack, **inputs}
    weights["encoder.embed_positions._float_tensor"] = torch.zeros(1)  # a placeholder that fairseq 0.12.2 requires
    weights |= _output(decoder.output_projection, weights)
    kept = ("conv_channels", "conv_kernel_sizes", *OF_THE_DATA)
    values = {name: getattr(args, name) for name in kept if hasattr(args, name)}
    values |= dict(arch=SPEECH, conv_version=SPEECH, encoder_freezing_updates=0)
    return _options(args, {**values, **encoder_sizes, **decoder_sizes}), weights


def _check_positions(positions: AttentionPositions, args: argparse.Namespace) -> None:
    """Rejects positions inside attention."""
    if type(positions) is not AttentionPositions:
        raise ValueError(f"--position={args.position}: acts in attention, but fairseq adds positions to the embedding")


def _language(model: LanguageModel, args: argparse.Namespace) -> tuple[argparse.Namespace, StateDict]:
    decoder, most = model.decoder, max_positions(args, "target")
    if not isinstance(decoder.stack, CausalStack):
        raise ValueError("a recurrence along the sequence: an upstream layer reads all tokens at once")
    unshare.check(decoder.stack.loop)
    _check_positions(decoder.stack.positions, args)
    stack, sizes, factor = _stack("decoder", decoder.stack.loop, decoder.stack.norm)
    if not unshare.is_one(factor):  # which nothing would undo without a final norm, or in adaptive bands
        raise ValueError(f"norm_eps={args.norm_eps}: must be {EPSILON}, as fairseq has it")
    inputs, learned = _inputs("decoder", decoder, most, factor)
    weights = {**stack, **inputs}
    values = dict(
        arch=LANGUAGE,
        decoder_learned_pos=learned,
        decoder_input_dim=args.decoder_embed_dim,
        decoder_output_dim=args.decoder_embed_dim,
        decoder_normalize_before=True,
        no_decoder_final_norm=decoder.stack.norm is None,
        no_token_positional_embeddings=decoder.inputs.table is None and decoder.inputs.embed_positions is None,
        max_target_positions=most,
        tokens_per_sample=getattr(args, "tokens_per_sample", None) or most,
        add_bos_token=getattr(args, "add_bos_token", False),
        tpu=False,
        **sizes,
    )
    for which in ("input", "softmax"):
        ends = getattr(args, f"adaptive_{which}_cutoff", "none")
        values[f"adaptive_{which}_cutoff"] = None if ends == "none" else ends
    values["adaptive_input"] = values["adaptive_input_cutoff"] is not None
    if decoder.output_projection is not None:
        weights |= _output(decoder.output_projection, weights)
    else:
        weights |= _adaptive_softmax(decoder)
    return argparse.Namespace(**{**language_defaults(), **vars(_options(args, values))}), weights


def _stack(side: str, loop: Loop, norm: nn.Module | None) -> tuple[StateDict, dict[str, int], unshare.Factor]:
    """The weights of the layers and the final norm, the options for their number and the width of their FFN, and the
    factor by which the stack's input must be scaled.
    """
    layers, factor = unshare.unshare(loop, EPSILON)
    memory = loop.blocks[0].cross_attn is not None
    weights: StateDict = {}
    for index, layer in enumerate(layers):
        weights |= to_theirs(layer, layer_pieces(f"{side}.layers.{index}", memory))
    weights[f"{side}.version"] = torch.tensor([3.0])  # otherwise fairseq treats this as an old checkpoint
    if norm is not None:
        weights[f"{side}.layer_norm.weight"] = norm.weight.detach()
        bias = norm.bias
        weights[f"{side}.layer_norm.bias"] = norm.weight.new_zeros(len(norm.weight)) if bias is None else bias.detach()
    sizes = {f"{side}_layers": len(layers), f"{side}_ffn_embed_dim": len(layers[0]["ffn.up.bias"])}
    return weights, sizes, factor


def _inputs(side: str, part: nn.Module, most: int, factor: unshare.Factor) -> tuple[StateDict, bool]:
    """The weights of embedding, positions (for `most` tokens) and LayerNorm, and whether positions must be learned.

    `part` is the encoder or decoder, `factor` is what the stack's input is multiplied by.
    """
    inputs, embedding = part.inputs, part.embed_tokens
    tensors = {f"{side}.embed_tokens.{key}": tensor for key, tensor in embedding.state_dict().items()}
    table, learned, rows = inputs.table, inputs.embed_positions, None
    scaled = inputs.layernorm is None and not unshare.is_one(factor)
    if learned is not None:
        rows = learned.weight.detach()
    elif table is not None and (table.function is not position.halved or scaled):
        rows = table(most, None, 0, like=next(iter(tensors.values())))
    if rows is not None:
        first = embedding.padding_idx + 1
        weight = rows.new_zeros(first + len(rows), rows.size(1))
        weight[first:] = rows
        tensors[f"{side}.embed_positions.weight"] = weight
    last = tensors  # what the factor is folded into
    if inputs.layernorm is not None:
        last = {f"{side}.layernorm_embedding.{key}": tensor for key, tensor in inputs.layernorm.state_dict().items()}
    tensors |= {key: unshare.times(tensor, factor) for key, tensor in last.items()}
    return tensors, rows is not None


def _output(output: nn.Module, weights: StateDict) -> StateDict:
    """The output matrix; with an output bias, also the last LayerNorm, given all other weights."""
    matrix = output.weight.detach()
    if output.bias is None:
        return {"decoder.output_projection.weight": matrix}
    last = sum(key.endswith(".fc1.bias") and key.startswith("decoder.") for key in weights) - 1
    final = "decoder.layer_norm.weight" in weights
    norm = "decoder.layer_norm" if final else f"decoder.layers.{last}.final_layer_norm"
    weight, bias = (weights[f"{norm}.{kind}"] for kind in ("weight", "bias"))
    ones = weight.new_ones(len(weight))
    constant = output.bias.detach() + matrix @ (bias - weight)
    matrix = matrix * weight + constant[:, None] / len(weight)
    return {f"{norm}.weight": ones, f"{norm}.bias": ones, "decoder.output_projection.weight": matrix}


def _adaptive_softmax(decoder: nn.Module) -> StateDict:
    """The bands of the output, including those stored in the embedding."""
    softmax = decoder.adaptive_softmax
    weights = {f"decoder.adaptive_softmax.{key}": tensor for key, tensor in softmax.state_dict().items()}
    for name, module in softmax.named_modules():
        if isinstance(module, BorrowingLinear):
            weights[f"decoder.adaptive_softmax.{name}.weight"] = module.weight.detach()
    return weights


def _options(args: argparse.Namespace, values: dict) -> argparse.Namespace:
    """The options without those of this plugin, updated with `values`."""
    ours = {*ARCH_MODEL_REGISTRY[args.arch].options.known(), "_name", "user_dir"}
    kept = {name: value for name, value in vars(args).items() if name in KEPT or name not in ours}
    return argparse.Namespace(**{**kept, **values})
