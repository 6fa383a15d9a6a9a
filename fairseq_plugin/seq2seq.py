"""The encoder-decoder model of translation and speech recognition, the base of their families."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from fairseq.tasks.translation_lev import TranslationLevenshteinTask
from torch import nn

from fairseq_plugin import admin
from fairseq_plugin.decoder import CrossDecoder
from fairseq_plugin.embedding import (
    TokenInput,
    dropout_rate,
    load_pretrained,
    new_embedding,
    output_layer,
    store_positions,
)
from fairseq_plugin.encoder import LoopedEncoder
from fairseq_plugin.options import ACTIVATIONS, SIDES, ConfiguredModel, StackOptions, option, position_option
from fairseq_plugin.register import activation
from recurrence import position
from recurrence.block import Shape
from recurrence.errors import FieldError
from recurrence.loop import Loop, named_loops
from recurrence.papers.admin import admins, attach
from recurrence.position import attention_positions

STATIC = "conflicts with static level signals, which already have the positions"
# Options from before --position, and the kind of positions that each stands for.
OLDER_POSITIONS = dict(
    encoder_learned_pos="learned", decoder_learned_pos="learned", no_token_positional_embeddings="none"
)
# Tasks whose models are of another kind.
NOT_FOR = {
    MultilingualTranslationTask: "builds a model of fairseq's own parts for each pair of languages",
    TranslationLevenshteinTask: "edits a sentence, which needs a Levenshtein model",
}
NOT_TRAINED_BY = {
    "label_smoothed_cross_entropy_with_alignment": "fused attention gives no weights to train; --print-alignment works",
    "ctc": "needs an encoder with an output layer of its own",
    "label_smoothed_cross_entropy_with_ctc": "needs an encoder with an output layer of its own",
}
LIMITS = dict(zip(SIDES, ("max_source_positions", "max_target_positions")))


@dataclass
class TranslationOptions(admin.AdminOptions, StackOptions):
    """Options of every encoder-decoder; the defaults are fairseq's."""

    encoder_embed_dim: int = option(512, "encoder: width", least=1)
    encoder_ffn_embed_dim: int = option(2048, "encoder: hidden width of the FFN")
    encoder_layers: int = option(6, "encoder: number of passes (One Wide FFN: pairs of passes)", least=1)
    encoder_attention_heads: int = option(8, "encoder: attention heads; must divide the width")
    encoder_normalize_before: bool = option(False, "encoder: pre-norm instead of post-norm")
    decoder_normalize_before: bool = option(False, "decoder: pre-norm instead of post-norm")
    position: str | None = position_option(
        None,
        " (default: sinusoidal). Static level signals are positions themselves: relative, rotary, alibi and none leave "
        "only the depth in them",
    )
    encoder_learned_pos: bool = option(False, "encoder: learned positions instead of sinusoids")
    decoder_learned_pos: bool = option(False, "decoder: learned positions instead of sinusoids")
    encoder_embed_path: str = option("", "encoder: pretrained embedding, a header and then lines 'symbol numbers'")
    decoder_embed_path: str = option("", "decoder: pretrained embedding, a header and then lines 'symbol numbers'")
    activation_fn: str = option("relu", "activation of the FFN", choices=ACTIVATIONS)
    share_decoder_input_output_embed: bool = option(False, "use the decoder's embedding as the output matrix")
    share_all_embeddings: bool = option(False, "one matrix for source, target and output; needs a joined dictionary")
    no_token_positional_embeddings: bool = option(False, "no positional embeddings")
    layernorm_embedding: bool = option(False, "LayerNorm on the embeddings")
    no_scale_embedding: bool = option(False, "do not multiply embeddings by sqrt(width)")
    position_table: str = option("halved", choices=("halved", "interleaved"))
    projection_bias: bool = option(True)
    output_bias: bool = option(False)
    embedding_std: float | None = option(None, least=0)  # at the start; None: 1 / sqrt(width), as in fairseq
    # Numbers of learned positions.
    max_source_positions: int | None = option(None)
    max_target_positions: int | None = option(None)


class LoopedTransformer(ConfiguredModel, FairseqEncoderDecoderModel):
    """An encoder and a decoder, each a loop. A family defines `options`, `initialise` and :meth:`loop`.

    Attributes:
        initialise: called with each finished loop, changes it in place, see :mod:`recurrence.init`. `fairseq_` and
            `normal_` draw every `nn.Linear` anew, those of passes included.
        reads_text: whether its encoder does; otherwise it reads speech.
        full_context_alignment: True: fairseq aligns by running the decoder once over the finished translation. The
            steps of a search keep attention only in a model prepared for it, and a hub interface does not prepare its
            model.
        profiled: buffer, whether Admin's vectors have their values, so that checkpoints store it; None without Admin.
    """

    options: type[TranslationOptions] = TranslationOptions
    initialise: Callable[..., None]
    reads_text = True
    full_context_alignment = True

    def __init__(self, encoder: LoopedEncoder, decoder: CrossDecoder):
        super().__init__(encoder, decoder)
        # Not a bool, because fairseq's moving average multiplies every entry of a state dict.
        self.register_buffer("profiled", torch.zeros(()) if admins(self) else None)
        if self.profiled is not None:
            admin.profile_at_first_update(self)

    @classmethod
    def loop(cls, args, side: str, shape: Shape, **parts: Any) -> Loop:
        """The stack of one side, built by the paper's file in :mod:`recurrence.papers`.

        Args:
            args: the model's options.
            side: "encoder" or "decoder".
            shape: sizes and rates of its blocks.
            **parts: arguments of :class:`recurrence.block.Block`.
        """
        raise TypeError(f"{cls.__name__}: a family must define loop")

    @classmethod
    def has_static_levels(cls, args) -> bool:
        """Whether the sinusoidal position + depth signal is added before each pass."""
        return False

    @classmethod
    def position_kind(cls, args, side: str) -> str | None:
        """The kind of positions of one side; None if only static level signals tell them."""
        if args.position is not None:
            return args.position
        if getattr(args, f"{side}_learned_pos"):
            return "learned"
        if args.no_token_positional_embeddings:
            return "none"
        return None if cls.has_static_levels(args) else "sinusoidal"

    @classmethod
    def inputs(cls, args, side: str, embedding: nn.Embedding | None, most: int) -> nn.Module:
        """The input layer of one side, for up to `most` tokens."""
        width = getattr(args, f"{side}_embed_dim")
        kind = cls.position_kind(args, side)
        return TokenInput(
            width,
            scale=1.0 if args.no_scale_embedding else math.sqrt(width),
            table=_position_table(args, embedding) if kind == "sinusoidal" else None,
            learned=most if kind == "learned" else 0,
            std=_embedding_std(args, width),
            layernorm=args.layernorm_embedding,
            dropout=dropout_rate(args),
        )

    @classmethod
    def _build(cls, args, task):
        source, target, joint = task.source_dictionary, task.target_dictionary, args.share_all_embeddings
        encoder_embedding = cls._embedding(args, "encoder", source)
        decoder_embedding = encoder_embedding if joint else cls._embedding(args, "decoder", target)
        tied = decoder_embedding if joint or args.share_decoder_input_output_embed else None
        std = None if args.output_bias else args.decoder_embed_dim**-0.5  # None: PyTorch's start, as RingFormer's
        output = output_layer(args.decoder_embed_dim, len(target), args.output_bias, tied, std)
        parts = cls._parts(args, "encoder", encoder_embedding, task)
        encoder = LoopedEncoder(source, encoder_embedding, **parts)
        parts = cls._parts(args, "decoder", decoder_embedding, task)
        decoder = CrossDecoder(target, decoder_embedding, not joint, output=output, **parts)
        model = cls(encoder, decoder)
        profile = admin.given_profile(args, list(named_loops(model).values()))
        if profile is not None:
            admin.set_profile(model, profile)
        args.encoder_embed_path = args.decoder_embed_path = ""  # the checkpoint's weights hold them
        model.set_loops(args)
        model.depth_rules = dict(prefix_only=cls.has_static_levels(args))
        return model

    @classmethod
    def _embedding(cls, args, side: str, dictionary) -> nn.Embedding | None:
        if dictionary is None:  # speech
            return None
        width = getattr(args, f"{side}_embed_dim")
        embedding = new_embedding(dictionary, width, _embedding_std(args, width))
        path = getattr(args, f"{side}_embed_path")
        if path:
            load_pretrained(path, dictionary, embedding)
        return embedding

    @classmethod
    def _parts(cls, args, side: str, embedding: nn.Embedding | None, task) -> dict[str, Any]:
        """The longest text, the input layer and the parts of the stack, by their names in encoder and decoder."""
        most = cls._longest(args, side, task)
        kind, pre_norm = cls.position_kind(args, side), getattr(args, f"{side}_normalize_before")
        inputs = cls.inputs(args, side, embedding, most)
        with cls.options.flags_in_errors(side):
            shape = cls.options.shape(args, side)
            positions = attention_positions(kind, shape.width, shape.heads, causal=side == "decoder")
            loop = cls.loop(
                args,
                side,
                shape,
                memory_width=args.encoder_embed_dim if side == "decoder" else None,
                pre_norm=pre_norm,
                activation=activation(args.activation_fn),
                bias=args.projection_bias,
                relative=kind == "relative",
            )
        if args.init == "admin":
            attach(loop, shape.width)
        cls.initialise(loop)
        return dict(
            max_positions=most,
            inputs=inputs,
            loop=loop,
            positions=positions,
            level_table=position.LevelTable(shape.width, kind is None) if cls.has_static_levels(args) else None,
            norm=nn.LayerNorm(shape.width, args.norm_eps) if pre_norm else None,
        )

    @classmethod
    def _longest(cls, args, side: str, task) -> int:
        """Longest source or target; with learned positions that of training, otherwise that of this command's task."""
        most = dict(zip(SIDES, task.max_positions()))[side]
        if cls.position_kind(args, side) != "learned":
            return most
        return store_positions(args, LIMITS[side], getattr(args, LIMITS[side]) or most)

    @classmethod
    def _check(cls, args, task) -> None:
        """Raises ValueError for options that conflict."""
        check_task(args, task)
        if cls.reads_text and task.source_dictionary is None:
            raise ValueError(f"--task: {type(task).__name__} reads speech; must be translation, or --arch one of s2t_*")
        cls.options.check(args)
        for side in SIDES:
            pre_norm = f"{side}_normalize_before"
            if args.init == "admin" and getattr(args, pre_norm):
                raise FieldError("init", "admin", f"needs post-norm, and conflicts with {{{pre_norm}}}")
        cls._check_positions(args)
        if args.share_all_embeddings:
            cls._check_sharing(args, task)

    @classmethod
    def _check_positions(cls, args) -> None:
        """Older options each stand for one kind of positions, and only for that."""
        kind, given = args.position, [name for name in OLDER_POSITIONS if getattr(args, name)]
        for name in given:
            if kind not in (None, OLDER_POSITIONS[name]):
                raise FieldError(name, True, "conflicts with {position}", position=kind)
            if OLDER_POSITIONS[name] != OLDER_POSITIONS[given[-1]]:
                raise FieldError(name, True, f"conflicts with {{{given[-1]}}}")
        if cls.has_static_levels(args) and (given or kind in ("sinusoidal", "learned")):
            raise FieldError(given[0], True, STATIC) if given else FieldError("position", kind, STATIC)

    @classmethod
    def _check_sharing(cls, args, task) -> None:
        if task.source_dictionary != task.target_dictionary:
            rule = "needs a joined dictionary (fairseq-preprocess --joined-dictionary)"
            raise FieldError("share_all_embeddings", True, rule)
        for name in ("embed_dim", "embed_path"):
            values = {f"{side}_{name}": getattr(args, f"{side}_{name}") for side in SIDES}
            if len({*values.values()}) > 1 and values[f"decoder_{name}"]:
                rule = f"{{encoder_{name}}} must equal {{decoder_{name}}}"
                raise FieldError("share_all_embeddings", True, rule, **values)


def check_task(args, task) -> None:
    """Raises ValueError for a task or a criterion that needs another kind of model."""
    criterion: Any = getattr(args, "criterion", None)
    if criterion in NOT_TRAINED_BY:
        raise ValueError(f"--criterion={criterion}: {NOT_TRAINED_BY[criterion]}")
    for kind, reason in NOT_FOR.items():
        if isinstance(task, kind):
            raise ValueError(f"--task: {type(task).__name__} {reason}; must be translation")
    if not isinstance(task.max_positions(), tuple | list):  # the largest source and target of a task that has both
        rule = "has no source, which an encoder-decoder needs; must be translation"
        raise ValueError(f"--task: {type(task).__name__} {rule}")


def _position_table(args, embedding: nn.Embedding) -> position.Table:
    """fairseq numbers tokens from pad + 1, with zeros for padding; RingFormer's code numbers them from 0."""
    if args.position_table == "halved":
        return position.Table(position.halved, embedding.embedding_dim, embedding.padding_idx + 1, blank_padding=True)
    return position.Table(position.interleaved, embedding.embedding_dim)


def _embedding_std(args, width: int) -> float:
    """The standard deviation of the first embeddings."""
    return width**-0.5 if args.embedding_std is None else args.embedding_std
