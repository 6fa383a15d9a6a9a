"""Models as folders of Hugging Face's transformers, which need no plugin; every pass becomes a layer.

A language model of Intra-Layer Recurrence is a `LlamaForCausalLM`. A translation model is first unshared, then an
`FSMTForConditionalGeneration`: fairseq's own transformer of that library, with fairseq's names.

Both run each of their layers once, and safetensors has no tensor of two names, so a layer that runs four times is
stored four times.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_plugin.conversion.hugging_face_tokenizer import renumbered, tokenizer
from fairseq_plugin.conversion.unshare import unshared
from fairseq_plugin.conversion.upstream import positions
from fairseq_plugin.models.ilr import IntraLayerRecurrence
from fairseq_plugin.modules.embedding import TokenInput
from fairseq_plugin.modules.model import LoopedTransformer
from fairseq_plugin.modules.options import SIDES

Converted = tuple[dict[str, Any], dict[str, Tensor]]  # the configuration and the weights


def converted(model: BaseFairseqModel, args: argparse.Namespace) -> Converted:
    """The configuration and the weights of a model.

    Args:
        model: as trained; it is left as it is.
        args: its options.

    Raises:
        ValueError: naming the architecture or the option that neither of the two has a place for.
    """
    translates = isinstance(model, LoopedTransformer) and isinstance(model.encoder.inputs, TokenInput)
    return (as_fsmt if translates else as_llama)(model, args)


def as_llama(model: BaseFairseqModel, args: argparse.Namespace) -> Converted:
    """As :func:`converted`, of a language model."""
    if not isinstance(model, IntraLayerRecurrence):
        raise ValueError(
            f"--arch {args.arch}: must be ilr_small, ilr_large or one of translation; transformers has no other blocks"
        )
    if args.position != "rope":
        raise ValueError(f"--position={args.position}: must be rope, the only positions of LlamaForCausalLM")
    loop = model.decoder.stack.loop
    if loop.inject:
        raise ValueError("--inject-embedding: a layer of LlamaForCausalLM reads the layer before it alone")
    if not args.no_scale_embedding:
        raise ValueError("--no-scale-embedding: must be given; LlamaForCausalLM does not scale its embedding")
    embedding, output = model.decoder.embed_tokens, model.decoder.output_projection
    weights = {"model.embed_tokens.weight": embedding.weight, "model.norm.weight": model.decoder.stack.norm.weight}
    if output.tied is None:
        weights["lm_head.weight"] = output.weight
    for index, which in enumerate(loop.order):
        weights |= {f"model.layers.{index}.{name}": tensor for name, tensor in _layer(loop.blocks[which]).items()}
    config = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=embedding.num_embeddings,
        hidden_size=args.decoder_embed_dim,
        intermediate_size=args.decoder_ffn_embed_dim,
        num_hidden_layers=loop.passes,
        num_attention_heads=args.decoder_attention_heads,
        num_key_value_heads=args.decoder_attention_heads,
        hidden_act="silu",
        rms_norm_eps=model.decoder.stack.norm.eps,
        rope_theta=10000.0,
        max_position_embeddings=positions(args, "target"),
        tie_word_embeddings=output.tied is not None,
        torch_dtype=str(embedding.weight.dtype).removeprefix("torch."),
    )
    return config, {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}


def _layer(block) -> dict[str, Tensor]:
    attention, ffn = block.self_attn, block.ffn
    q, k, v = attention.qkv.weight.chunk(3)
    gate, up = ffn.gate_up.weight.chunk(2)
    return {
        **{f"self_attn.{name}_proj.weight": weight for name, weight in zip("qkvo", (q, k, v, attention.out.weight))},
        **{
            f"mlp.{name}_proj.weight": weight
            for name, weight in zip(("gate", "up", "down"), (gate, up, ffn.down.weight))
        },
        "input_layernorm.weight": block.norms[0].weight,
        "post_attention_layernorm.weight": block.norms[1].weight,
    }


def as_fsmt(model: BaseFairseqModel, args: argparse.Namespace) -> Converted:
    """As :func:`converted`, of a translation model."""
    options, weights = unshared(model, args)
    _check_fsmt(options)
    matrix, pad = weights["decoder.embed_tokens.weight"], model.encoder.embed_tokens.padding_idx
    dtype, tied = matrix.dtype, options.share_all_embeddings
    rows = positions(options, "source")
    table = SinusoidalPositionalEmbedding.get_embedding(rows + pad + 1, options.encoder_embed_dim, pad).to(dtype)
    weights = {**{f"{side}.embed_positions.weight": table for side in SIDES}, **weights}
    names = ["layers", "attention_heads"]
    sizes = {f"{side}_{name}": getattr(options, f"{side}_{name}") for side in SIDES for name in names}
    config = dict(
        architectures=["FSMTForConditionalGeneration"],
        model_type="fsmt",
        langs=[getattr(options, f"{side}_lang", None) or side for side in ("source", "target")],
        src_vocab_size=len(weights["encoder.embed_tokens.weight"]),
        tgt_vocab_size=len(matrix),
        d_model=options.encoder_embed_dim,
        **sizes,
        **{f"{side}_ffn_dim": getattr(options, f"{side}_ffn_embed_dim") for side in SIDES},
        activation_function=options.activation_fn,
        max_position_embeddings=rows,
        scale_embedding=not options.no_scale_embedding,
        tie_word_embeddings=tied,
        **{name: getattr(options, name) for name in ("dropout", "attention_dropout", "activation_dropout")},
        torch_dtype=str(dtype).removeprefix("torch."),
    )
    left = {"encoder.version", "decoder.version"}
    left |= {"encoder.embed_tokens.weight", "decoder.output_projection.weight"} if tied else set()
    kept = {f"model.{key}": tensor for key, tensor in weights.items() if key not in left}
    return config, {name: tensor.detach().clone().contiguous() for name, tensor in kept.items()}


def _check_fsmt(options: argparse.Namespace) -> None:
    """Refuses what fairseq's transformer may have and FSMT has no place for."""
    absent = {
        "encoder_normalize_before": "its layers are post-norm",
        "decoder_normalize_before": "its layers are post-norm",
        "layernorm_embedding": "it has no LayerNorm on its embedding",
        "no_token_positional_embeddings": "it adds positions to its embedding",
    }
    for name, reason in absent.items():
        if getattr(options, name, False):
            raise ValueError(f"--{name.replace('_', '-')}: has no place in FSMTForConditionalGeneration: {reason}")
    if options.activation_fn not in ("relu", "gelu"):
        raise ValueError(f"--activation-fn={options.activation_fn}: must be relu or gelu")
    widths = options.encoder_embed_dim, options.decoder_embed_dim
    if widths[0] != widths[1]:
        raise ValueError(f"--decoder-embed-dim={widths[1]}: must be the encoder's, {widths[0]}")
    rows = positions(options, "source"), positions(options, "target")
    if rows[0] != rows[1]:
        raise ValueError(f"--max-target-positions={rows[1]}: must be the source's, {rows[0]}")


def write(
    folder: Path, config: dict[str, Any], weights: dict[str, Tensor], words: list[Dictionary], pieces: Path | None
) -> None:
    """Writes the folder, with a tokenizer that numbers its tokens as the dictionary does.

    Where the target has a dictionary of its own, its tokenizer is the folder's `target`.

    Args:
        folder: it must not exist.
        config, weights: of :func:`converted`.
        words: the dictionaries of the training data, of the source and of the target; one of a language model.
        pieces: the sentencepiece model that segmented it; None where words stand between blanks.

    Raises:
        ValueError: a dictionary has not as many symbols as the model; the pieces are of an unknown kind.
    """
    from safetensors.torch import save_file

    translates = config["model_type"] == "fsmt"
    sizes = [config["src_vocab_size"], config["tgt_vocab_size"]] if translates else [config["vocab_size"]]
    for one, size in zip(words, sizes, strict=True):
        if len(one) != size:
            raise ValueError(f"--dictionary: has {len(one)} symbols, the model {size}")
    folder.mkdir(parents=True)
    first = words[0]
    ids = dict(bos_token_id=first.eos(), eos_token_id=first.eos(), pad_token_id=first.pad())
    if translates:
        ids |= dict(bos_token_id=first.bos(), decoder_start_token_id=first.eos(), forced_eos_token_id=first.eos())
    _write_json(folder / "config.json", {**config, **ids})
    _write_json(folder / "generation_config.json", {**ids, **(SEARCH if translates else {})})
    # A sentence ends; a text of fairseq's language models begins with the end of the one before.
    template = f"$A {first[first.eos()]}" if translates else f"{first[first.eos()]} $A"
    for where, one in ((folder, first), (folder / "target", words[-1])):
        if where == folder or one != first:
            where.mkdir(exist_ok=True)
            special = dict(bos=one.eos(), eos=one.eos(), pad=one.pad(), unk=one.unk())
            names = {f"{name}_token": one[which] for name, which in special.items()}
            names |= dict(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=not translates)
            _write_json(where / "tokenizer_config.json", names)
            tokenizer(one, pieces, template).save(str(where / "tokenizer.json"))
    numbered = renumbered(first, pieces) if pieces and not translates else None
    if numbered:
        (folder / "tokenizer.model").write_bytes(numbered)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


SEARCH = dict(num_beams=5, max_length=200)  # as fairseq-generate's
