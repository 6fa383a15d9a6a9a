"""fairseq's own transformers: building one from a checkpoint's options, and the names of its parameters."""

import argparse
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from fairseq import models
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY, BaseFairseqModel
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_plugin.build import numbered_dictionary
from fairseq_repairs.replace import instead
from recurrence.errors import misfit
from recurrence.weights.names import Piece, StateDict, stacked

TRANSLATION, LANGUAGE, SPEECH = "transformer", "transformer_lm", "s2t_transformer"
MOST_POSITIONS = 1024


def build(args: argparse.Namespace, weights: StateDict) -> BaseFairseqModel:
    """Builds the model of a checkpoint, fairseq's or this plugin's, without its data, in eval mode.

    Args:
        args: the model's options from the checkpoint; not changed.
        weights: its state dict, which also gives the sizes of the dictionaries.

    Raises:
        ValueError: if there is no such architecture, or the weights are not its weights.
    """
    other_weights = ("encoder_embed_path", "decoder_embed_path", "load_pretrained_encoder_from")
    args = argparse.Namespace(**{**vars(args), **dict.fromkeys(other_weights)})
    if args.arch in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[args.arch](args)
    model = ARCH_MODEL_REGISTRY.get(args.arch) or MODEL_REGISTRY.get(args.arch)
    if model is None:
        raise ValueError(f"--arch {args.arch}: must be an architecture of fairseq or of this plugin")
    limits = {f"max_{side}_positions": max_positions(args, side) for side in ("source", "target")}
    vars(args).update(limits)
    decoder = _symbols(weights, "decoder")
    if any(key.startswith("encoder.") for key in weights):
        features = _features(weights)
        args.input_feat_per_channel, args.input_channels = features, 1
        source = None if features else numbered_dictionary(_symbols(weights, "encoder"))
        target = numbered_dictionary(decoder) if decoder else source
        task = TranslationTask(TranslationConfig(**limits), source, target)
    else:
        args.tokens_per_sample = limits["max_target_positions"]
        task = LanguageModelingTask(args, numbered_dictionary(decoder))
    built = model.build_model(args, task)
    try:
        built.load_state_dict(dict(weights))
    except (KeyError, RuntimeError) as error:  # fairseq 0.12.2 looks up keys itself
        wrong = f"Missing key {error}" if isinstance(error, KeyError) else misfit(error)
        raise ValueError(f"IN: --arch {args.arch}: does not fit the weights: {wrong}") from None
    return built.eval()


def readable(args: argparse.Namespace) -> OrderedDict:
    """Options in a form that fairseq can load without this package, under torch's safe loader.

    That loader rejects `argparse.Namespace` but restores the attributes of an `OrderedDict`. With the options as its
    items and as its attributes, fairseq and CTranslate2's converter can use it like a Namespace.
    """
    options = OrderedDict(vars(args))
    vars(options).update(vars(args))
    return options


@instead(models, "build_model")
def build_from_readable_options(build_model: Callable, cfg: Any, *args, **kwargs) -> BaseFairseqModel:
    """Lets fairseq build a language model from :func:`readable` options, as CTranslate2's converter hands them on."""
    return build_model(argparse.Namespace(**vars(cfg)) if isinstance(cfg, OrderedDict) else cfg, *args, **kwargs)


def max_positions(args: argparse.Namespace, side: str) -> int:
    """Longest source or target, in tokens."""
    return getattr(args, f"max_{side}_positions", None) or getattr(args, "tokens_per_sample", None) or MOST_POSITIONS


def language_defaults() -> dict:
    """The default options of `transformer_lm`."""
    config = TransformerLanguageModelConfig()
    values = {field.name: getattr(config, field.name) for field in fields(config) if not field.name.startswith("_")}
    return {name: value for name, value in values.items() if not str(value).startswith("${")}


def layer_pieces(theirs: str, memory: bool) -> Iterator[Piece]:
    """One layer: the names of its parameters in fairseq, after this prefix, and here; `memory` for cross-attention."""
    attentions = [("self_attn", "self_attn", "qkv")]
    if memory:
        attentions += [("encoder_attn", "cross_attn", "q"), ("encoder_attn", "cross_attn", "kv")]
    norms = ["self_attn_layer_norm", *(["encoder_attn_layer_norm"] if memory else []), "final_layer_norm"]
    for kind in ("weight", "bias"):
        for their_name, name, projections in attentions:
            keys = [f"{theirs}.{their_name}.{projection}_proj.{kind}" for projection in projections]
            yield from stacked(keys, f"{name}.{projections}.{kind}")
        for their_name, name in dict.fromkeys(attention[:2] for attention in attentions):
            yield Piece(f"{theirs}.{their_name}.out_proj.{kind}", f"{name}.out.{kind}")
        for their_name, name in (("fc1", "ffn.up"), ("fc2", "ffn.down")):
            yield Piece(f"{theirs}.{their_name}.{kind}", f"{name}.{kind}")
        for which, norm in enumerate(norms):
            yield Piece(f"{theirs}.{norm}.{kind}", f"norms.{which}.{kind}")


def _features(weights: StateDict) -> int:
    """Number of features per frame of speech; 0 for text."""
    first = (tensor for key, tensor in weights.items() if key.endswith("subsample.conv_layers.0.weight"))
    return next((tensor.size(1) for tensor in first), 0)


def _symbols(weights: StateDict, side: str) -> int:
    """Number of symbols of one side; 0 if its embedding is stored under the other side."""
    for key in (f"{side}.embed_tokens.weight", f"{side}.output_projection.weight"):
        if key in weights:
            return len(weights[key])
    bands = [key for key in weights if key.startswith(f"{side}.embed_tokens.embeddings.") and key.endswith("0.weight")]
    return sum(len(weights[key]) for key in bands)
