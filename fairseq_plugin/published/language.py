"""Published language models: those of Intra-Layer Recurrence, and Kausik's recurrent transformer."""

from collections.abc import Iterator

from fairseq_plugin.build import build_language_model, unpadded_dictionary
from fairseq_plugin.language_model import LanguageModel
from recurrence.weights.names import Piece, stacked


def _outside_layers(model: LanguageModel, embedding: str, positions: str, norm: str) -> Iterator[Piece]:
    """Everything outside the layers: the embedding, which is also the output matrix, learned positions, final norm."""
    for name in (embedding, "lm_head"):
        yield Piece(f"{name}.weight", "decoder.embed_tokens.weight")
    if model.decoder.inputs.embed_positions is not None:
        yield Piece(f"{positions}.weight", "decoder.inputs.embed_positions.weight")
    yield Piece(f"{norm}.weight", "decoder.stack.norm.weight")


# Intra-Layer Recurrence

ILR_SIZES = {
    "max_positions": "max_position_embeddings",
    "decoder_layers": "num_hidden_layers",
    "decoder_embed_dim": "hidden_size",
    "decoder_ffn_embed_dim": "intermediate_size",
    "decoder_attention_heads": "num_attention_heads",
    "norm_eps": "rms_norm_eps",
}
POSITION = {"nope": "none", "rope": "rotary", "ape": "learned", "alibi": "alibi"}


def _ilr_model(config: dict) -> LanguageModel:
    if config["rope_theta"] != 10000:
        raise ValueError(f"rope_theta={config['rope_theta']}: must be 10000, as in the published code")
    of_stack = config["sequential_looping"]  # the published code then ignores a map, and otherwise a number of loops
    loops, layers = config["num_loops"] if of_stack else 1, config["num_hidden_layers"]
    counts = [1] * layers if of_stack else config["loop_map"]  # a map of the preset would replace None
    return build_language_model(
        "ilr_small",
        unpadded_dictionary(config["vocab_size"]),
        **{ours: config[theirs] for ours, theirs in ILR_SIZES.items()},
        position=POSITION[config["positional_encoding"]],
        reuse_map=None if loops > 1 else ",".join(map(str, counts)),
        block_loops=loops,
        inject_embedding=config["use_recurrent_embeds"],
    )


def _ilr_pieces(model: LanguageModel, config: dict) -> Iterator[Piece]:
    yield from _outside_layers(model, "model.embed_tokens", "model.embed_positions", "model.norm")
    for index in range(len(model.decoder.stack.loop.blocks)):
        yield from ilr_layer(f"model.layers.{index}", f"decoder.stack.loop.blocks.{index}")


def ilr_layer(theirs: str, ours: str) -> Iterator[Piece]:
    """The table of one block, whose published names are those of LLaMA in transformers."""
    yield from stacked([f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv"], f"{ours}.self_attn.qkv.weight")
    yield Piece(f"{theirs}.self_attn.o_proj.weight", f"{ours}.self_attn.out.weight")
    yield from stacked([f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up")], f"{ours}.ffn.gate_up.weight")
    yield Piece(f"{theirs}.mlp.down_proj.weight", f"{ours}.ffn.down.weight")
    for index, name in enumerate(("input", "post_attention")):
        yield Piece(f"{theirs}.{name}_layernorm.weight", f"{ours}.norms.{index}.weight")


# Kausik's recurrent transformer

KAUSIK_BLOCK = {
    "ln_1": "norms.0",
    "attn.c_attn": "self_attn.qkv",
    "attn.c_proj": "self_attn.out",
    "ln_2": "norms.1",
    "mlp.c_fc": "ffn.up",
    "mlp.c_proj": "ffn.down",
}


def _kausik_model(config: dict) -> LanguageModel:
    if config["bias"]:
        raise ValueError(
            f"bias={config['bias']}: must be False, as in the published training scripts (only the "
            "default of the code's GPTConfig is True)"
        )
    return build_language_model(
        "recurrent_lm",
        unpadded_dictionary(config["vocab_size"]),
        max_positions=config["block_size"],
        decoder_embed_dim=config["n_embd"],
        decoder_layers=config["n_layer"],
        decoder_attention_heads=config["n_head"],
        dropout=config["dropout"],
        regular=not config["rec_flag"],
    )


def _kausik_pieces(model: LanguageModel, config: dict) -> Iterator[Piece]:
    yield from _outside_layers(model, "transformer.wte", "transformer.wpe", "transformer.ln_f")
    for index in range(len(model.decoder.stack.loop.blocks)):
        for theirs, ours in KAUSIK_BLOCK.items():
            yield Piece(f"transformer.h.{index}.{theirs}.weight", f"decoder.stack.loop.blocks.{index}.{ours}.weight")


SYSTEMS = {"ilr": (_ilr_model, _ilr_pieces), "kausik": (_kausik_model, _kausik_pieces)}
