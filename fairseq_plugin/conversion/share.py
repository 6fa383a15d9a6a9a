"""The host's own `transformer` as a looped model with low-rank terms of each pass, ready to be trained on.

Its layers are tied in an order of Takase & Kiyono (`sequence`, `cycle`, `cycle_rev`), see :mod:`recurrence.share`.
"""

import argparse

from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, BaseFairseqModel

from fairseq_plugin.conversion.host import FIXED, TRANSLATION, layer_pieces, positions
from fairseq_plugin.modules.options import SIDES
from recurrence.convert import StateDict, convert
from recurrence.order import PAPER, Order
from recurrence.share import share

# What the host's transformer may have and a loop does not, and the value that leaves it out.
ABSENT = dict(adaptive_input=False, adaptive_softmax_cutoff=None, no_cross_attention=False, cross_self_attention=False)
ABSENT |= dict(base_layers=0, no_decoder_final_norm=False, character_embeddings=False)


def shared(
    model: BaseFairseqModel, args: argparse.Namespace, strategy: str, unique_layers: int, rank: int | None
) -> tuple[argparse.Namespace, StateDict]:
    """Options and weights of the looped model that stands for one of the host's.

    Args:
        model: the host's, as trained; it is left as it is.
        args: its options, all of them; those of a training run may stand among them.
        strategy: the architecture that ties its layers: "sequence", "cycle" or "cycle_rev".
        unique_layers: M, stored layers of each side.
        rank: of each pass's terms; None for none, which averages what is tied and drops the rest.

    Raises:
        ValueError: naming the option and the rule, or what the host's model has and a loop has not.
    """
    check_shareable(args)
    width = min(args.encoder_embed_dim, args.decoder_embed_dim)
    if rank is not None and not 1 <= rank <= width:
        raise ValueError(f"--rank={rank}: must be >= 1 and <= the model's width, {width}")
    orders = {side: _order(strategy, unique_layers, args, side) for side in SIDES}
    theirs, weights = model.state_dict(), {}
    for side, order in orders.items():
        weights |= _side(side, theirs, args, order, rank)
    if not (args.share_all_embeddings or args.share_decoder_input_output_embed):
        weights["decoder.output_projection.weight"] = theirs["decoder.output_projection.weight"]
    values = dict(arch=strategy, strategy=strategy, share_layer_num=None, residual_rank=rank)
    values |= {f"{side}_unique_layers": unique_layers for side in SIDES}
    return argparse.Namespace(**{**vars(args), **values}), weights


def _order(strategy: str, unique_layers: int, args: argparse.Namespace, side: str) -> Order:
    layers = getattr(args, f"{side}_layers")
    if not 1 <= unique_layers <= layers:
        raise ValueError(f"--unique-layers={unique_layers}: must be >= 1 and <= --{side}-layers={layers}")
    order = PAPER[strategy](unique_layers, layers)
    if max(order) >= unique_layers:
        raise ValueError(f"--unique-layers={unique_layers}: must divide --{side}-layers={layers} with {strategy}")
    return order


def check_shareable(args: argparse.Namespace) -> None:
    """Fills options in that older versions of the host did not have.

    Raises:
        ValueError: naming what the host's model has and a loop has not, before it is built.
    """
    name = ARCH_MODEL_NAME_REGISTRY.get(args.arch, args.arch)
    if name != TRANSLATION:
        raise ValueError(f"--arch {args.arch}: only the host's own '{TRANSLATION}' and its sizes can be shared")
    ARCH_CONFIG_REGISTRY[args.arch](args)
    for option, value in ABSENT.items():
        if getattr(args, option, value) not in (value, None):
            raise ValueError(f"--{option.replace('_', '-')}={getattr(args, option)}: a looped model has no such part")
    for option in ("input_dim", "output_dim"):
        if getattr(args, f"decoder_{option}") != args.decoder_embed_dim:
            raise ValueError(
                f"--decoder-{option.replace('_', '-')}={getattr(args, f'decoder_{option}')}: must equal "
                f"--decoder-embed-dim={args.decoder_embed_dim}, a looped model has no projection between the two"
            )


def _side(
    side: str, theirs: StateDict, args: argparse.Namespace, order: tuple[int, ...], rank: int | None
) -> StateDict:
    prefix = f"{side}.layers."
    stack = {key: tensor for key, tensor in theirs.items() if key.startswith(prefix)}
    memory = side == "decoder"
    pieces = [piece for index in range(len(order)) for piece in layer_pieces(f"{prefix}{index}", f"{index}", memory)]
    weights = {}
    for key, tensor in theirs.items():
        name = key.removeprefix(f"{side}.")
        if name in ("embed_tokens.weight", "layer_norm.weight", "layer_norm.bias"):
            weights[key] = tensor
        elif name.startswith("layernorm_embedding."):
            weights[f"{side}.inputs.layernorm.{name.split('.')[1]}"] = tensor
        elif name == "embed_positions.weight":
            first = tensor.size(0) - positions(args, "source" if side == "encoder" else "target")
            weights[f"{side}.inputs.embed_positions.weight"] = tensor[first:]
    if memory and args.share_all_embeddings:
        del weights["decoder.embed_tokens.weight"]
    flat = convert(stack, pieces, _shapes(stack, pieces), FIXED.fullmatch)
    layers = [
        {key.split(".", 1)[1]: tensor for key, tensor in flat.items() if key.startswith(f"{index}.")}
        for index in range(len(order))
    ]
    loop = share(layers, order, rank)
    return {**weights, **{f"{side}.loop.{key}": tensor for key, tensor in loop.items()}}


def _shapes(stack: StateDict, pieces: list) -> StateDict:
    """Tensors of our shapes: what they store in parts, we stack along the first dimension."""
    return {piece.ours: stack[piece.theirs].repeat_interleave(piece.our_rows[2], dim=0) for piece in pieces}
