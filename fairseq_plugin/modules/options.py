"""A model's options: fields of a dataclass, from which fairseq's command line is made and a yaml file is checked."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, get_args

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from torch import nn

from recurrence.block import Shape
from recurrence.errors import FieldError

SIDES = ("encoder", "decoder")
ACTIVATIONS = utils.get_available_activation_fns()
# Sizes of a stack: their names in the core, and in fairseq behind the side's.
SIZES = {"width": "embed_dim", "ffn_width": "ffn_embed_dim", "heads": "attention_heads"}
RATES = ("dropout", "attention_dropout", "activation_dropout")
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def option(default: Any, help: str | None = None, **about: Any) -> Any:
    """A field of :class:`Options`, or of another dataclass of fairseq's.

    Args:
        default: the value where neither the user nor a preset gives one; it may be a function of all options.
        help: the text of `--help`; a field without it is set by presets and yaml files alone.
        **about: `choices`; `where`, values of other fields without which this one does not apply and is None; fairseq's
            `argparse_alias` and `argparse_const`.
    """
    return field(default=default, metadata={"help": help, **about})


def like(name: str) -> Callable[[Any], Any]:
    """A default: the value of another option."""
    return lambda args: getattr(args, name)


@dataclass
class Options(FairseqDataclass):
    """Base of the options of a family.

    Not registered as fairseq's dataclass of the model: fairseq lets the defaults of that one win over what `_name`
    says in a yaml file, and a preset would be lost.

    Attributes:
        fixed: the values of inherited fields for which a family has no option.
    """

    fixed: ClassVar[dict[str, Any]] = {}

    @classmethod
    def known(cls) -> dict[str, Field]:
        """The fields by name."""
        return {one.name: one for one in fields(cls) if one.name != "_name"}

    def _get_all_attributes(self) -> list[str]:
        """What fairseq makes options of."""
        return [name for name, one in self.known().items() if one.metadata.get("help") and name not in self.fixed]

    def _get_type(self, name: str) -> Any:
        """What fairseq makes of the text behind an option."""
        choices = self._get_choices(name)
        return ChoiceEnum(choices) if choices else _kind(self.known()[name])

    @classmethod
    def fill(cls, args: Any, preset: dict[str, Any]) -> None:
        """Sets every option that was not given, functions of other options last."""
        known = cls.known()
        values = {**{name: one.default for name, one in known.items()}, **cls.fixed, **preset}
        late = {name for name in values if callable(values[name]) or known[name].metadata.get("where")}
        for name in sorted(values, key=late.__contains__):
            if getattr(args, name, None) is None:
                value = None if _conflict(known[name], args) else values[name]
                setattr(args, name, value(args) if callable(value) else value)

    @classmethod
    def check(cls, args: Any) -> None:
        """Refuses what a single option can be wrong with.

        Raises:
            ValueError: for a key of a yaml file that no field has; a command line's parser knows its own.
            FieldError: for a value of another kind, that is no choice, or that does not go with another option.
        """
        known, arch = cls.known(), getattr(args, "_name", None)
        unknown = () if isinstance(args, argparse.Namespace) else set(args) - {*known, "_name"}
        for name in sorted(unknown):
            raise ValueError(f"{name}: not an option of {arch}")
        for name, one in known.items():
            value, kind, choices = getattr(args, name, None), _kind(one), one.metadata.get("choices")
            if value is None:
                continue
            if kind in KINDS and not isinstance(value, (int, float) if kind is float else kind):
                raise FieldError(name, value, f"must be {KINDS[kind]}")
            if name in cls.fixed and value != cls.fixed[name]:
                raise FieldError(name, value, f"not an option of {arch}, for which it is {cls.fixed[name]}")
            if choices and value not in choices:
                raise FieldError(name, value, f"must be one of {choices}")
            other = _conflict(one, args)
            if other and value is not False:
                raise FieldError(name, value, f"does not go with {{{other}}}", **{other: getattr(args, other)})

    @classmethod
    @contextmanager
    def named(cls, side: str = "") -> Iterator[None]:
        """Turns `heads=3: must divide width=16` into `--encoder-attention-heads=3: must divide --encoder-embed-dim=16`.

        Args:
            side: the stack that the core's values belong to.
        """
        known, options = cls.known(), cls()._get_all_attributes()

        def told(name: str) -> str:
            of_side = f"{side}_{SIZES.get(name, name)}"
            name = of_side if of_side in known else name
            return "--" + name.replace("_", "-") if name in options else name

        try:
            yield
        except FieldError as error:
            raise ValueError(error.told(told)) from None


def _kind(one: Field) -> Any:
    """The type of a field's values, None apart."""
    return next(iter(get_args(one.type)), one.type)


def _conflict(one: Field, args: Any) -> str | None:
    """The other option whose value leaves a field without a meaning."""
    where = one.metadata.get("where", {})
    return next((other for other, values in where.items() if getattr(args, other) not in values), None)


@dataclass
class StackOptions(Options):
    """What every model has, under fairseq's names; its one stack, or the second of two, is the decoder."""

    decoder_embed_dim: int = option(512, "decoder: width")
    decoder_ffn_embed_dim: int = option(2048, "decoder: hidden width of the FFN")
    decoder_layers: int = option(6, "decoder: depth, counted in passes")
    decoder_attention_heads: int = option(8, "decoder: attention heads; must divide the width")
    norm_eps: float = option(1e-5)
    dropout: float = option(0.1, "rate on embeddings and on every sublayer's output")
    attention_dropout: float = option(0.0, "rate on attention weights")
    activation_dropout: float = option(0.0, "rate on the FFN's hidden units", argparse_alias="--relu-dropout")
    checkpoint_activations: bool = option(
        False, "recompute each pass in the backward pass: less memory, about a third more work"
    )
    compile: str | None = option(
        None,
        "torch.compile each stored block for training, once for all its passes, by this backend (inductor)",
        choices=("inductor", "aot_eager", "eager"),
        argparse_const="inductor",
    )

    @classmethod
    def shape(cls, args: Any, side: str) -> Shape:
        """The shape of the blocks of one side."""
        sizes = {ours: getattr(args, f"{side}_{theirs}") for ours, theirs in SIZES.items()}
        return Shape(**sizes, norm_eps=args.norm_eps, **{rate: getattr(args, rate) for rate in RATES})


class ConfiguredModel(nn.Module):
    """A model of a family.

    Attributes:
        options: those of the family.
    """

    options: type[StackOptions] = StackOptions

    @classmethod
    def add_args(cls, parser: argparse.ArgumentParser) -> None:
        """Adds what the command line may set, without defaults, which would win over presets."""
        gen_parser_from_dataclass(parser, cls.options(), delete_default=True)
