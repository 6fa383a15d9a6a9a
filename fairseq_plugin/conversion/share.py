"""Conversion of fairseq's own models to looped ones with low-rank terms for each pass, for further training.

Layers are tied in an order of :data:`recurrence.order.STRATEGIES`, see :mod:`recurrence.weights.share`. With the
strategy `cycle`, a `transformer` becomes `cycle`, a `transformer_lm` `cycle_lm`, and an `s2t_transformer` `s2t_cycle`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, BaseFairseqModel

from fairseq_plugin.conversion.upstream import FIXED, LANGUAGE, SPEECH, TRANSLATION, layer_pieces, max_positions
from fairseq_plugin.modules.adaptive import NONE
from fairseq_plugin.modules.options import SIDES
from recurrence.errors import FieldError, shown
from recurrence.order import STRATEGIES, Order, block_count
from recurrence.weights.names import StateDict, to_ours
from recurrence.weights.share import share


@dataclass(frozen=True)
class Kind:
    """The looped model that one of fairseq's models becomes.

    Args:
        name: architecture, with a placeholder for the strategy.
        sides: the stacks.
        loop, norm: names of a stack's loop and its final norm in the encoder or decoder.
        fixed: options of fairseq's model that a looped one does not have, with the only value that can be converted.
    """

    name: str
    sides: Sequence[str]
    loop: str
    norm: str
    fixed: dict


EVERYWHERE = dict(base_layers=0, character_embeddings=False, scale_fc=False, scale_attn=False, scale_heads=False)
EVERYWHERE |= dict(scale_resids=False, no_cross_attention=False, cross_self_attention=False)
ONE_MATRIX = dict(adaptive_input=False, adaptive_softmax_cutoff=None)
SINUSOIDS = dict(decoder_learned_pos=False, no_token_positional_embeddings=False)
PRE_NORM = dict(encoder_normalize_before=True, decoder_normalize_before=True)
KINDS = {
    TRANSLATION: Kind("{}", SIDES, "loop", "layer_norm", {**ONE_MATRIX, "no_decoder_final_norm": False}),
    LANGUAGE: Kind(
        "{}_lm",
        ("decoder",),
        "stack.loop",
        "stack.norm",
        {**SINUSOIDS, "layernorm_embedding": False, "decoder_normalize_before": True},
    ),
    SPEECH: Kind(
        "s2t_{}",
        SIDES,
        "loop",
        "layer_norm",
        {**ONE_MATRIX, **SINUSOIDS, **PRE_NORM, "conv_version": SPEECH, "ctc_weight": 0},
    ),
}


def shared(
    model: BaseFairseqModel, args: argparse.Namespace, strategy: str, unique_layers: int, rank: int | None
) -> tuple[argparse.Namespace, StateDict]:
    """Options and weights of the looped model that one of fairseq's models becomes.

    Args:
        model: a trained model of fairseq's own; not changed.
        args: its options, possibly with those of the training run.
        strategy: how its layers are tied, one of :data:`recurrence.order.STRATEGIES`.
        unique_layers: M, stored layers of each side.
        rank: rank of each pass's terms; None for no terms, which averages tied layers and drops their differences.

    Raises:
        ValueError: naming the option and the rule, or what a looped model cannot represent.
    """
    kind = check_shareable(args)
    width = min(getattr(args, f"{side}_embed_dim") for side in kind.sides)
    if rank is not None and not 1 <= rank <= width:
        raise ValueError(f"--rank={rank}: must be >= 1 and <= the model's width, {width}")
    orders = {side: _order(strategy, unique_layers, args, side) for side in kind.sides}
    theirs = {key.replace(".transformer_layers.", ".layers."): tensor for key, tensor in model.state_dict().items()}
    weights = _outside_layers(theirs, kind, args)
    for side, order in orders.items():
        loop = _loop(side, theirs, order, rank)
        weights |= {f"{side}.{kind.loop}.{key}": tensor for key, tensor in loop.items()}
    arch = kind.name.format(strategy)
    if arch not in ARCH_MODEL_REGISTRY:
        raise ValueError(f"--strategy={strategy}: there is no architecture {arch}")
    values = dict(arch=arch, strategy=strategy, share_layer_num=None, residual_rank=rank)
    values |= {f"{side}_unique_layers": unique_layers for side in kind.sides}
    if args.no_token_positional_embeddings:  # fairseq then ignores whether positions would be learned
        values |= {f"{side}_learned_pos": False for side in kind.sides}
    if kind is KINDS[LANGUAGE]:
        values |= _language_values(args)
    return argparse.Namespace(**{**vars(args), **values}), weights


def _order(strategy: str, unique_layers: int, args: argparse.Namespace, side: str) -> Order:
    """The order of one side. Raises ValueError, with the names of the command's options."""
    options = {"unique_layers": "--unique-layers", "layers": f"--{side}-layers"}
    try:
        layers = getattr(args, f"{side}_layers")
        order = STRATEGIES[strategy].order(unique_layers, layers)
        if block_count(order) != unique_layers:
            raise FieldError("unique_layers", unique_layers, f"must divide {{layers}} with {strategy}", layers=layers)
        return order
    except FieldError as error:
        raise ValueError(error.message(lambda name, value: shown(options[name], value))) from None


def check_shareable(args: argparse.Namespace) -> Kind:
    """What the model with these options becomes; adds options that older versions of fairseq did not have.

    Raises:
        ValueError: naming what a looped model cannot represent, before the model is built.
    """
    kind = KINDS.get(ARCH_MODEL_NAME_REGISTRY.get(args.arch, args.arch))
    if kind is None:
        names = ", ".join(KINDS)
        raise ValueError(f"--arch {args.arch}: must be one of fairseq's own {names}, of any size")
    ARCH_CONFIG_REGISTRY[args.arch](args)
    for option, value in {**EVERYWHERE, **kind.fixed}.items():
        given = getattr(args, option, value)
        if given != value and (given or value):  # older versions of fairseq write None where newer ones write 0
            raise ValueError(f"--{option.replace('_', '-')}={given}: must be {value}, as in every looped model")
    for option in ("input_dim", "output_dim"):
        given = getattr(args, f"decoder_{option}", args.decoder_embed_dim)
        if given != args.decoder_embed_dim:
            raise ValueError(
                f"--decoder-{option.replace('_', '-')}={given}: must equal --decoder-embed-dim="
                f"{args.decoder_embed_dim}, because a looped model has no projection between the two"
            )
    return kind


def _language_values(args: argparse.Namespace) -> dict:
    """The options of a language model that have another form in fairseq."""
    cutoffs = {"input": args.adaptive_input and args.adaptive_input_cutoff, "softmax": args.adaptive_softmax_cutoff}
    values = {f"adaptive_{which}_cutoff": ends or NONE for which, ends in cutoffs.items()}
    return dict(values, decoder_final_norm=not args.no_decoder_final_norm)


def _outside_layers(theirs: StateDict, kind: Kind, args: argparse.Namespace) -> StateDict:
    """All weights outside the layers under our names; tied weights under one name.

    Raises:
        ValueError: naming a weight that a looped model does not have.
    """
    places = {name: name for name in ("embed_tokens", "output_projection", "adaptive_softmax")}
    places |= {"layernorm_embedding": "inputs.layernorm", "layer_norm": kind.norm, "subsample": "inputs.subsample"}
    weights, seen = {}, set()
    for key, tensor in theirs.items():
        side, name, *rest = key.split(".")
        if key.endswith("embed_positions.weight"):  # no token uses the first rows, up to that of the padding
            first = len(tensor) - max_positions(args, "source" if side == "encoder" else "target")
            weights[f"{side}.inputs.embed_positions.weight"] = tensor[first:]
        elif name in places:
            if tensor.data_ptr() not in seen:
                weights[".".join((side, places[name], *rest))] = tensor
            seen.add(tensor.data_ptr())
        elif name != "layers" and not FIXED.fullmatch(key):
            raise ValueError(f"{key}: a looped model has no such part")
    return weights


def _loop(side: str, theirs: StateDict, order: Order, rank: int | None) -> StateDict:
    """The layers of one side, tied."""
    layers = []
    for index in range(len(order)):
        prefix = f"{side}.layers.{index}"
        layer = {key: tensor for key, tensor in theirs.items() if key.startswith(f"{prefix}.")}
        pieces = list(layer_pieces(prefix, memory=any(".encoder_attn." in key for key in layer)))
        # What fairseq stores separately is stacked along the first dimension.
        shapes = {piece.ours: layer[piece.theirs].repeat_interleave(piece.our_rows[2], dim=0) for piece in pieces}
        layers.append(to_ours(layer, pieces, shapes, FIXED.fullmatch))
    return share(layers, order, rank)
