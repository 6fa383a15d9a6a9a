"""Model options as dataclass fields: they define the command line, the presets, and what a yaml file may contain."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, get_args

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from torch import nn

from recurrence.block import Shape
from recurrence.errors import FieldError, shown
from recurrence.loop import named_loops
from recurrence.position import POSITIONS
from recurrence.removed import LATE_LOOPS, RELAXED_SHARING, reject_options

SIDES = ("encoder", "decoder")
ACTIVATIONS = utils.get_available_activation_fns()
# Sizes of a stack: name in the core -> fairseq's name after encoder_ or decoder_.
SIZES = {"width": "embed_dim", "ffn_width": "ffn_embed_dim", "heads": "attention_heads"}
RATES = ("dropout", "attention_dropout", "activation_dropout")
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
# Options of the criterion that trains several depths.
ELASTIC = "elastic_cross_entropy"
DEPTH_OPTIONS = ("depth_range", "depth_warmup_updates", "mixed_depth", "pass_loss")

# Options of earlier versions, and what to use instead, which the error says. A checkpoint may name those that steered a
# training or a search, but not those that gave the model weights.
FEWER_PASSES = "run fewer passes, as with --model-overrides \"{'decoder_layers': 3}\" of a RingFormer (docs/depth.md)"
REMOVED = {
    "exit_threshold": FEWER_PASSES,
    "loop_after_updates": LATE_LOOPS,
    "depth_apart": "give --depth-range alone, whose common draw was as good",
    "draft_passes": FEWER_PASSES,
    "draft_tokens": FEWER_PASSES,
    "eight_bits": "export the model to CTranslate2, whose files may store eight bits",
    "residual_rank": RELAXED_SHARING,
}
GAVE_WEIGHTS = ("residual_rank",)
MOVED = dict.fromkeys(DEPTH_OPTIONS, f"give it to --criterion {ELASTIC}")


def option(default: Any, help: str | None = None, **about: Any) -> Any:
    """A field of :class:`Options`, or of another fairseq dataclass.

    Args:
        default: used if neither the user nor a preset gives a value; may be a function of all options.
        help: text for `--help`; a field without it can only be set by presets and yaml files.
        **about: `choices`; `least`, the smallest number; `where`, the values of other fields that this field needs
            (otherwise it is None); fairseq's `argparse_alias` and `argparse_const`.
    """
    return field(default=default, metadata={"help": help, **about})


def position_option(default: Any, note: str = "", older: tuple[str, ...] = ()) -> Any:
    """The field `position` of a family; `note` ends its help text, `older` are words of older checkpoints."""
    help = "sinusoidal and learned positions are added to the embedding once; relative (Transformer-XL's), rotary and "
    return option(default, help + "alibi act in self-attention at every pass" + note, choices=POSITIONS + older)


def flag(name: str) -> str:
    """`depth_range` -> `--depth-range`."""
    return "--" + name.replace("_", "-")


def like(name: str) -> Callable[[Any], Any]:
    """A default: the value of another option."""
    return lambda args: getattr(args, name)


@dataclass
class Options(FairseqDataclass):
    """Base of a family's options.

    It is not registered as fairseq's dataclass of the model, because fairseq lets the defaults of that class override
    the preset that a yaml file selects by `_name`.

    Attributes:
        fixed: values of inherited fields that the family does not offer as options.
    """

    fixed: ClassVar[dict[str, Any]] = {}

    @classmethod
    def known(cls) -> dict[str, Field]:
        """The fields by name."""
        return {spec.name: spec for spec in fields(cls) if spec.name != "_name"}

    @classmethod
    def removed(cls) -> dict[str, str]:
        """Options of earlier versions that this family does not have, and what to use instead."""
        return {name: instead for name, instead in (REMOVED | MOVED).items() if name not in cls.known()}

    def _get_all_attributes(self) -> list[str]:
        """The fields that fairseq adds to the command line."""
        return [name for name, spec in self.known().items() if spec.metadata.get("help") and name not in self.fixed]

    def _get_type(self, name: str) -> Any:
        """The type to which fairseq converts an option's text."""
        choices = self._get_choices(name)
        return ChoiceEnum(choices) if choices else _kind(self.known()[name])

    @classmethod
    def fill(cls, args: Any, preset: dict[str, Any]) -> None:
        """Sets every option that was not given; defaults that depend on other options come last."""
        known = cls.known()
        values = {**{name: spec.default for name, spec in known.items()}, **cls.fixed, **preset}

        def depends(name: str) -> bool:
            return callable(values[name]) or "where" in known[name].metadata

        for name in sorted(values, key=depends):  # False first; otherwise in the order of the fields
            if getattr(args, name, None) is None:
                value = None if _conflict(known[name], args) else values[name]
                setattr(args, name, value(args) if callable(value) else value)

    @classmethod
    def check(cls, args: Any) -> None:
        """Checks every option by itself.

        Raises:
            ValueError: for an unknown key in a yaml file.
            FieldError: for a value of the wrong type, not among the choices, too small, no rate, or without the options
                that it needs, and where a checkpoint has weights that no model has any more.
        """
        known, arch = cls.known(), getattr(args, "_name", None)
        unknown = () if isinstance(args, argparse.Namespace) else set(args) - {*known, *cls.removed(), "_name"}
        for name in sorted(unknown):
            raise ValueError(f"{name}: not an option of {arch}")
        cls.reject_removed(args, GAVE_WEIGHTS)
        # A decoder's value may be the encoder's, which was given.
        for name, spec in sorted(known.items(), key=lambda item: item[0].startswith("decoder")):
            value, kind, choices = getattr(args, name, None), _kind(spec), spec.metadata.get("choices")
            if value is None:
                continue
            is_flag = isinstance(value, bool) and kind is not bool  # for Python, a bool is an int
            if kind in KINDS and (is_flag or not isinstance(value, (int, float) if kind is float else kind)):
                raise FieldError(name, value, f"must be {KINDS[kind]}")
            if name in cls.fixed and value != cls.fixed[name]:
                raise FieldError(name, value, f"not an option of {arch}, for which it is {cls.fixed[name]}")
            if choices and value not in choices:
                raise FieldError(name, value, f"must be one of {choices}")
            if "least" in spec.metadata and value < spec.metadata["least"]:
                raise FieldError(name, value, f"must be >= {spec.metadata['least']}")
            if name.endswith("dropout") and not 0 <= value <= 1:
                raise FieldError(name, value, "must be a rate within [0, 1]")
            other = _conflict(spec, args)
            if other and value is not False:
                raise FieldError(name, value, f"conflicts with {{{other}}}", **{other: getattr(args, other)})

    @classmethod
    def reject_removed(cls, args: Any, names: Iterable[str]) -> None:
        """Raises FieldError for the first of these options that was removed, but has a value."""
        for name in names:
            if name in cls.removed() and getattr(args, name, None):
                raise FieldError(name, getattr(args, name), f"was removed: {cls.removed()[name]}")

    @classmethod
    @contextmanager
    def flags_in_errors(cls, side: str = "") -> Iterator[None]:
        """Turns `heads=3: must divide width=16` into `--encoder-attention-heads=3: must divide --encoder-embed-dim=16`.

        `side` is "encoder" or "decoder" for errors about one stack.
        """
        known, options = cls.known(), cls()._get_all_attributes()

        def show(name: str, value: Any) -> str:
            of_side = f"{side}_{SIZES.get(name, name)}"
            name = of_side if of_side in known else name
            if name not in options:
                return shown(name, value)
            is_switch = value is True and _kind(known[name]) is bool
            return shown(flag(name), None if is_switch else value)

        try:
            yield
        except FieldError as error:
            raise ValueError(error.message(show)) from None


def _kind(spec: Field) -> Any:
    """The type of a field's values, ignoring None."""
    return next(iter(get_args(spec.type)), spec.type)


def _conflict(spec: Field, args: Any) -> str | None:
    """The option whose value makes this field inapplicable; None if there is none."""
    where = spec.metadata.get("where", {})
    return next((other for other, values in where.items() if getattr(args, other) not in values), None)


@dataclass
class StackOptions(Options):
    """Options of every model, under fairseq's names. A language model only has a decoder."""

    decoder_embed_dim: int = option(512, "decoder: width", least=1)
    decoder_ffn_embed_dim: int = option(2048, "decoder: hidden width of the FFN")
    decoder_layers: int = option(6, "decoder: number of passes", least=1)
    decoder_attention_heads: int = option(8, "decoder: attention heads; must divide the width")
    norm_eps: float = option(1e-5)
    dropout: float = option(0.1, "rate on embeddings and on every sublayer's output")
    embedding_dropout: float | None = option(None, "another rate on embeddings than that of --dropout")
    attention_dropout: float = option(0.0, "rate on attention weights")
    activation_dropout: float = option(0.0, "rate on the FFN's hidden units", argparse_alias="--relu-dropout")
    checkpoint_activations: bool = option(
        False, "recompute each pass in the backward pass: less memory, about a third more work"
    )
    compile: str | None = option(
        None,
        "compile each stored block for training, once for all its passes, with this backend (default: inductor)",
        choices=("inductor", "aot_eager", "eager"),
        argparse_const="inductor",
    )

    @classmethod
    def shape(cls, args: Any, side: str) -> Shape:
        """The shape of the blocks of one side."""
        sizes = {ours: getattr(args, f"{side}_{theirs}") for ours, theirs in SIZES.items()}
        return Shape(**sizes, norm_eps=args.norm_eps, **{rate: getattr(args, rate) for rate in RATES})


class ConfiguredModel(nn.Module):
    """A model that has a family's `options`. A subclass checks them together in `_check` and builds in `_build`.

    Attributes:
        depth_rules: `step` and `prefix_only` of :func:`recurrence.elastic.training_depth`.
        num_updates: how many updates the model has had; None if neither fairseq's trainer nor its loader has said so.
    """

    options: type[StackOptions] = StackOptions
    depth_rules: Mapping[str, Any] = {}
    num_updates: int | None = None

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the command-line options, without defaults, which would override presets."""
        gen_parser_from_dataclass(parser, cls.options(), delete_default=True)

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Adds what fairseq's command line needs: the options, and those removed, to say what to use instead."""
        cls.add_options(parser)
        removed = cls.options.removed()
        reject_options(parser, {name: removed[name] for name in removed.keys() - MOVED})

    @classmethod
    def build_model(cls, args, task):
        """Builds the model; fairseq calls this. Options are checked before anything is built.

        Raises:
            ValueError: naming the option, the value and the rule.
        """
        with cls.options.flags_in_errors():
            cls.options.fill(args, {})  # a user's own architecture may leave options out
            cls._check(args, task)
            return cls._build(args, task)

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's task calls this before each batch of training, its trainer before it loads a checkpoint.

        Raises:
            ValueError: if training resumes with passes that have loaded what others own, and would get their momentum.
        """
        moved = [loop for loop in named_loops(self).values() if loop.moved]
        if moved and num_updates:
            raise ValueError(
                "the checkpoint runs its blocks in another order, and its optimizer state belongs to other parameters; "
                "use --reset-optimizer or, in a new --save-dir and without --restore-file, --finetune-from-model"
            )
        for loop in moved:
            loop.moved = False  # a new training, whose later updates are its own
        super().set_num_updates(num_updates)
        self.num_updates = num_updates

    def set_loops(self, args: Any) -> None:
        """Sets what training recomputes and compiles."""
        for loop in named_loops(self).values():
            loop.checkpointing = args.checkpoint_activations
            if args.compile:
                loop.compile_blocks(backend=args.compile)

    @classmethod
    def unshared(cls, args: Any, layers: dict[str, int]) -> dict[str, Any]:
        """The options of the same model without loops, with which :mod:`fairseq_plugin.compare` compares it.

        Args:
            args: its options.
            layers: number of blocks by side, each run once.

        Returns:
            What differs: `arch`, if another family has no loops, and options; None for one that must not be given.

        Raises:
            ValueError: if there is no such model.
        """
        rule = "defines no model without a loop to compare it with (the method `unshared` of its class)"
        raise ValueError(f"--arch={args.arch}: {rule}")
