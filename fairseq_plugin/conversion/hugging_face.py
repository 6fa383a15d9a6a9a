"""Language models of Intra-Layer Recurrence as folders of Hugging Face's `LlamaForCausalLM`, which need no plugin.

Every pass becomes a layer: `LlamaForCausalLM` runs each of its layers once, and safetensors has no tensor of two names,
so a layer that runs four times is stored four times.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

from fairseq_plugin.conversion.host import positions
from fairseq_plugin.models.ilr import IntraLayerRecurrence

WEIGHTS, SENTENCEPIECE = "model.safetensors", "tokenizer.model"


def as_llama(model: BaseFairseqModel, args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The configuration and the weights.

    Args:
        model: as trained; it is left as it is.
        args: its options.

    Raises:
        ValueError: naming the architecture or the option that `LlamaForCausalLM` has no place for.
    """
    if not isinstance(model, IntraLayerRecurrence):
        raise ValueError(f"--arch {args.arch}: must be ilr_small or ilr_large; LlamaForCausalLM has no other blocks")
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


def write(
    folder: Path, config: dict[str, Any], weights: dict[str, Tensor], words: Dictionary, pieces: Path | None
) -> None:
    """Writes the folder, with a tokenizer that numbers its tokens as the dictionary does.

    Args:
        folder: it must not exist.
        config, weights: of :func:`as_llama`.
        words: the dictionary of the training data.
        pieces: the sentencepiece model that segmented it; None where words stand between blanks.
    """
    from safetensors.torch import save_file

    if len(words) != config["vocab_size"]:
        raise ValueError(f"dict.txt: has {len(words)} symbols, the model {config['vocab_size']}")
    folder.mkdir(parents=True)
    ids = {f"{name}_token_id": getattr(words, which)() for name, which in SPECIAL.items()}
    names = {f"{name}_token": words[getattr(words, which)()] for name, which in SPECIAL.items()}
    names["unk_token"] = words[words.unk()]
    # A text of fairseq begins with the end of the one before.
    fast = dict(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=True, **names)
    _write_json(folder / "config.json", {**config, **ids})
    _write_json(folder / "generation_config.json", ids)
    _write_json(folder / "tokenizer_config.json", fast)
    _tokenizer(words, pieces).save(str(folder / "tokenizer.json"))
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


SPECIAL = {"bos": "eos", "eos": "eos", "pad": "pad"}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _tokenizer(words: Dictionary, pieces: Path | None):
    """A tokenizer of Hugging Face's library."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    numbers = {words[index]: index for index in range(len(words))}
    unknown, begin = words[words.unk()], words[words.eos()]
    if pieces is None:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(numbers, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = tokenizers.Tokenizer(_model_of_pieces(numbers, unknown, pieces))
        steps = [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, words.eos())]
    )
    tokenizer.add_special_tokens([words[index] for index in (words.bos(), words.pad(), words.eos(), words.unk())])
    return tokenizer


def _model_of_pieces(numbers: dict[str, int], unknown: str, pieces: Path):
    """A sentencepiece model's segmentation, its pieces numbered as the dictionary numbers them.

    A piece that the training text never gave is unknown to fairseq. Here it has a number behind the model's symbols,
    which the model refuses (a BPE model), or its parts are read (a unigram model).
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import models

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(pieces.read_bytes())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in range(processor.get_piece_size())}
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        worst = min(scores.values()) - 10
        ordered = sorted(numbers, key=numbers.get)
        return models.Unigram([(piece, scores.get(piece, worst)) for piece in ordered], unk_id=numbers[unknown])
    if proto.trainer_spec.model_type != proto.trainer_spec.BPE:
        raise ValueError(f"--sentencepiece-model={pieces}: must be of type bpe or unigram")
    # The steps to a piece may be no symbols of the dictionary; they are numbered behind them.
    every = {**numbers, **{piece: len(numbers) + i for i, piece in enumerate(sorted(set(scores) - set(numbers)))}}
    merges = [
        (-scores[piece], every[piece[:cut]], every[piece[cut:]], piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return models.BPE(every, [(left, right) for *_, left, right in sorted(merges)], unk_token=unknown)
