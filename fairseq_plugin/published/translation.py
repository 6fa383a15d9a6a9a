"""Published translation models: RingFormer's experiments, and Takase & Kiyono's."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fairseq.data import Dictionary

from fairseq_plugin.build import build_architecture, numbered_dictionary
from fairseq_plugin.options import SIDES
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence.order import Order
from recurrence.papers.admin import admins
from recurrence.papers.ringformer import RingFormerPass
from recurrence.weights.names import Piece, StateDict, affine, stacked


def _dictionary(size: int, pad: int) -> Dictionary:
    """A dictionary of the right size whose padding has the published index."""
    dictionary = numbered_dictionary(size)
    dictionary.bos_index, dictionary.pad_index = dictionary.pad_index, pad
    return dictionary


# RingFormer and its baselines

RINGFORMER_ARCH = {
    "ringformer": "ringformer_base",
    "universal": "universal",
    "one_wide_ffn": "one_wide_ffn_base",
    "vanilla": "vanilla_base",
}


def _ringformer_model(system: str, config: dict) -> LoopedTransformer:
    sizes = {"embed_dim": "hidden_dim", "ffn_embed_dim": "ffn_dim", "attention_heads": "num_head"}
    options = {f"{side}_{ours}": config[theirs] for side in SIDES for ours, theirs in sizes.items()}
    options.update(
        encoder_layers=config["enc_num_layers"],
        decoder_layers=config["dec_num_layers"],
        dropout=config["dropout"],
        activation_dropout=config["dropout"],
        projection_bias=bool(config["bias"]),
    )
    if system != "ringformer":
        options["norm_eps"] = config["layernorm_eps"]
    if system != "universal" and not config["pos_encoding"]:
        options.update(encoder_learned_pos=True, decoder_learned_pos=True)
    return build_architecture(
        RINGFORMER_ARCH[system],
        _dictionary(config["src_vocab"], config["pad"]),
        _dictionary(config["trg_vocab"], config["pad"]),
        max_positions=config["max_len"],
        **options,
    )


def _ringformer_pieces(model: LoopedTransformer, config: dict) -> Iterator[Piece]:
    yield Piece("fc.weight", "decoder.output_projection.weight")
    yield Piece("fc.bias", "decoder.output_projection.bias")
    for side, attention in zip(SIDES, ("self_attention", "masked_self_attention")):
        yield Piece(f"{side}.emb_layer.emb_layer.weight", f"{side}.embed_tokens.weight")
        if getattr(model, side).inputs.embed_positions is not None:
            yield Piece(f"{side}.pos_layer.emb_layer.weight", f"{side}.inputs.embed_positions.weight")
        loop = getattr(model, side).loop
        for index, block in enumerate(loop.blocks):
            is_ffn = block.self_attn is None  # the shared FFN of One Wide FFN
            theirs = f"{side}.FFN" if is_ffn else f"{side}.{side}s.{index}"
            yield from _ringformer_block(theirs, f"{side}.loop.blocks.{index}", block, attention, bool(config["bias"]))
        for index, own in enumerate(loop.own):
            if isinstance(own, RingFormerPass):
                yield from _ringformer_pass(side, index, own)


def _ringformer_block(theirs: str, ours: str, block, attention: str, bias: bool) -> Iterator[Piece]:
    for kind in ("weight", "bias") if bias else ("weight",):
        if block.self_attn is not None:
            keys = [f"{theirs}.{attention}.{name}_proj.{kind}" for name in "qkv"]
            yield from stacked(keys, f"{ours}.self_attn.qkv.{kind}")
            yield Piece(f"{theirs}.{attention}.attn_proj.{kind}", f"{ours}.self_attn.out.{kind}")
        if block.cross_attn is not None:
            cross = f"{theirs}.enc_dec_attention"
            yield Piece(f"{cross}.q_proj.{kind}", f"{ours}.cross_attn.q.{kind}")
            yield from stacked([f"{cross}.{name}_proj.{kind}" for name in "kv"], f"{ours}.cross_attn.kv.{kind}")
            yield Piece(f"{cross}.attn_proj.{kind}", f"{ours}.cross_attn.out.{kind}")
        if block.ffn is not None:
            yield Piece(f"{theirs}.positionWiseFeedForward.FFN1.0.{kind}", f"{ours}.ffn.up.{kind}")
            yield Piece(f"{theirs}.positionWiseFeedForward.FFN2.0.{kind}", f"{ours}.ffn.down.{kind}")
    norms = getattr(block, "norms", ())
    for index in range(len(norms)):
        name = "layer_norm" if len(norms) == 1 else f"layer_norm_0{index + 1}"
        yield from affine(f"{theirs}.{name}", f"{ours}.norms.{index}")


def _ringformer_pass(side: str, level: int, own) -> Iterator[Piece]:
    ours = f"{side}.loop.own.{level}"
    for index in range(len(own.norms)):
        yield from affine(f"{side}.layer_norms_0{index + 1}.{level}", f"{ours}.norms.{index}")
    for number, factor in (("01", "up"), ("02", "down")):
        keys = [f"{side}.lev_param_SA_{name}_{number}" for name in "QKV"]
        yield from stacked(keys, f"{ours}.qkv_signal.{factor}", level)
        yield Piece(f"{side}.lev_param_FF_{number}", f"{ours}.ffn_signal.{factor}", level=level)


# Takase & Kiyono

STRATEGY = {"sequence": "sequence", "cycle": "cycle", "cycle_reverse": "cycle_rev"}
INIT = {"default": "default", "adaptive": "admin", "adaptive-profiling": "admin"}
ADMIN = {
    "encoder": ("attention_ratio_change", "fc_ratio_change"),
    "decoder": ("self_ratio_change", "encoder_ratio_change", "fc_ratio_change"),
}


def _takase_model(config: dict) -> LoopedTransformer:
    shared, per_layer = config["share_params_cross_layer"], config["share_layer_num"]
    shares_all = shared and per_layer == -1  # the published code supports it for SEQUENCE only
    options = {
        f"{side}_{name}": config.get(f"{side}_{name}", config[f"encoder_{name}"])
        for side in SIDES
        for name in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
    }
    options.update(
        activation_fn=config["activation_fn"],
        init=INIT[config.get("init_type", "default")],
        share_all_embeddings=True,
        strategy=STRATEGY[config["share_type"]],
    )
    if shares_all:
        options.update(encoder_unique_layers=1, decoder_unique_layers=1)
    else:
        options.update(share_layer_num=per_layer if shared else 1)
    joint = _dictionary(config["vocab"], config["pad"])
    model = build_architecture("sequence", joint, joint, **options)
    if config.get("init_type") == "adaptive":
        model.profiled.fill_(1)
    return model


def _takase_pieces(model: LoopedTransformer, config: dict) -> Iterator[Piece]:
    for side in SIDES:
        yield Piece(f"{side}.embed_tokens.weight", "encoder.embed_tokens.weight")
        loop = getattr(model, side).loop
        for depth, which in enumerate(loop.order):
            yield from _takase_layer(f"{side}.layers.{depth}", f"{side}.loop.blocks.{which}", side == "decoder")
        for depth in range(loop.passes if admins(loop) else 0):
            for index, name in enumerate(ADMIN[side]):
                ours = f"{side}.loop.own.{depth}.residuals.{index}.weight"
                yield Piece(f"{side}.layers.{depth}.{name}", ours)


def reject_copied_biases(state_dict: StateDict, order: Order) -> None:
    """Raises ValueError for shared decoder layers as Takase & Kiyono's code trains them: a repeated layer has the input
    bias of self-attention in cross-attention, too, and so does not share the bias of the layer's first run.
    """
    for depth, which in enumerate(order):
        first, name = f"decoder.layers.{order.index(which)}", f"decoder.layers.{depth}.encoder_attn.in_proj_bias"
        keys = (name, f"{first}.self_attn.in_proj_bias", f"{first}.encoder_attn.in_proj_bias")
        if all(key in state_dict for key in keys):
            bias, copied, shared = (state_dict[key] for key in keys)
            if bias.equal(copied) and not bias.equal(shared):
                raise ValueError(
                    f"{name}: is that of self-attention, as the published code has it in repeated layers; load the "
                    "checkpoint with share_params_cross_layer=False, a layer for each pass"
                )


def _takase_layer(theirs: str, ours: str, decoder: bool) -> Iterator[Piece]:
    norms: Iterable[str] = ("self_attn", "encoder_attn", "final") if decoder else ("self_attn", "final")
    for kind in ("weight", "bias"):
        yield Piece(f"{theirs}.self_attn.in_proj_{kind}", f"{ours}.self_attn.qkv.{kind}")
        yield Piece(f"{theirs}.self_attn.out_proj.{kind}", f"{ours}.self_attn.out.{kind}")
        if decoder:
            cross = f"{theirs}.encoder_attn.in_proj_{kind}"
            yield Piece(cross, f"{ours}.cross_attn.q.{kind}", their_rows=(0, 1, 3))
            yield Piece(cross, f"{ours}.cross_attn.kv.{kind}", their_rows=(1, 3, 3))
            yield Piece(f"{theirs}.encoder_attn.out_proj.{kind}", f"{ours}.cross_attn.out.{kind}")
        yield Piece(f"{theirs}.fc1.{kind}", f"{ours}.ffn.up.{kind}")
        yield Piece(f"{theirs}.fc2.{kind}", f"{ours}.ffn.down.{kind}")
        for index, norm in enumerate(norms):
            yield Piece(f"{theirs}.{norm}_layer_norm.{kind}", f"{ours}.norms.{index}.{kind}")


SYSTEMS: dict[str, tuple[Callable, Callable]] = {
    **{system: (partial(_ringformer_model, system), _ringformer_pieces) for system in RINGFORMER_ARCH},
    "takase": (_takase_model, _takase_pieces),
}
