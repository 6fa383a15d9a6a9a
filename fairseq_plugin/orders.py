"""The options for an order: the stored block that runs in each pass, in place of what a preset says."""

from dataclasses import dataclass
from typing import Any, ClassVar

from fairseq_plugin.options import SIDES, Options, option
from recurrence.errors import FieldError
from recurrence.order import parse_order


def any_order(side: str, replaced: str) -> Any:
    """The option for the order of one side."""
    return option(None, f"{side}: the stored layer that runs in each pass, such as 0,1,1,1,2, in place of {replaced}")


@dataclass
class OrderOptions(Options):
    """Base of the options of a family that has `encoder_order` or `decoder_order`.

    Attributes:
        replaced: options of a side that its order replaces, without the side.
        replaced_by_all: options that are replaced once every side has an order.
    """

    replaced: ClassVar[tuple[str, ...]] = ("layers",)
    replaced_by_all: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def orders(cls, args: Any) -> dict[str, str | None]:
        """The text of each side's order; None where none is given."""
        return {side: getattr(args, f"{side}_order", None) for side in SIDES if f"{side}_order" in cls.known()}

    @classmethod
    def fill(cls, args: Any, preset: dict[str, Any]) -> None:
        """An order replaces values of the preset."""
        orders = cls.orders(args)
        names = [f"{side}_{name}" for side, text in orders.items() if text for name in cls.replaced]
        if all(orders.values()):
            names += cls.replaced_by_all
        super().fill(args, {**preset, **dict.fromkeys(names)})

    @classmethod
    def check(cls, args: Any) -> None:
        """Also checks the orders. Raises FieldError for an invalid order, or if an option that it replaces is given."""
        super().check(args)
        given = {f"{side}_order": text for side, text in cls.orders(args).items() if text is not None}
        for name, text in given.items():
            try:
                passes = len(parse_order(text))
            except FieldError as error:
                raise FieldError(name, text, error.rule) from None
            layers = name.replace("order", "layers")
            if getattr(args, layers) not in (None, passes):
                rule = f"must be {passes}, the number of passes in {{{name}}}"
                raise FieldError(layers, getattr(args, layers), rule, **{name: text})
        if len(given) == len(cls.orders(args)):
            for name in cls.replaced_by_all:
                if getattr(args, name) is not None:
                    rule = "conflicts with " + " and ".join(f"{{{order}}}" for order in given)
                    raise FieldError(name, getattr(args, name), rule, **given)
