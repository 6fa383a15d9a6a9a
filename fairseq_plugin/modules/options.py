"""Command-line options that all recurrent architectures share, and errors that speak of options."""

import argparse
from contextlib import contextmanager

from fairseq import utils

from recurrence.block import Shape
from recurrence.errors import FieldError

SIDES = ("encoder", "decoder")

# What the core calls a value, and the option that sets it.
OPTION_OF = {
    "width": "--{side}-embed-dim",
    "ffn_width": "--{side}-ffn-embed-dim",
    "heads": "--{side}-attention-heads",
    "layers": "--{side}-layers",
    "unique_layers": "--{side}-unique-layers",
    "share_layer_num": "--share-layer-num",
    "dropout": "--dropout",
    "attention_dropout": "--attention-dropout",
    "activation_dropout": "--activation-dropout",
    "divisor": "--signal-rank-divisor",
    "attention": "--attention-signal",
    "cross_attention": "--cross-attention-signal",
    "init": "--signal-init",
    "ffn": "--ffn-signal",
    "reuse_map": "--reuse-map",
    "loops": "--block-loops",
    "window": "--window",
    "window_range": "--window-range",
    "residual_rank": "--residual-rank",
    "depth_range": "--depth-range",
    "depth_distribution": "--depth-distribution",
    "backprop_passes": "--backprop-passes",
}


@contextmanager
def errors_name_options(side: str):
    """Turns `heads=3: must divide width=16` into `--encoder-attention-heads=3: must divide --encoder-embed-dim=16`."""
    try:
        yield
    except FieldError as error:
        raise ValueError(error.told(lambda field: OPTION_OF.get(field, field).format(side=side))) from None


def shape_of(args: argparse.Namespace, side: str) -> Shape:
    """The shape of the blocks of one side."""
    return Shape(
        width=getattr(args, f"{side}_embed_dim"),
        ffn_width=getattr(args, f"{side}_ffn_embed_dim"),
        heads=getattr(args, f"{side}_attention_heads"),
        dropout=args.dropout,
        attention_dropout=args.attention_dropout,
        activation_dropout=args.activation_dropout,
        norm_eps=args.norm_eps,
    )


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Adds fairseq's usual options of translation, under fairseq's names, as far as they apply."""
    add_stack_options(parser)
    add = parser.add_argument
    for side in SIDES:
        add(f"--{side}-normalize-before", action="store_true", help=f"{side}: pre-norm instead of post-norm")
        add(f"--{side}-learned-pos", action="store_true", help=f"{side}: learned positions instead of sinusoids")
        add(f"--{side}-embed-path", metavar="FILE", help=f"{side}: pretrained embedding, one 'symbol numbers' a line")
    add(
        "--share-all-embeddings",
        action="store_true",
        help="one matrix for source, target and output; needs a joined dictionary",
    )
    add("--no-token-positional-embeddings", action="store_true", help="no positions at all")


def add_stack_options(parser: argparse.ArgumentParser) -> None:
    """Adds those of an encoder and a decoder, whatever the encoder reads."""
    add = parser.add_argument
    for side in SIDES:
        add(f"--{side}-embed-dim", type=int, metavar="C", help=f"{side}: width")
        add(f"--{side}-ffn-embed-dim", type=int, metavar="F", help=f"{side}: hidden width of the FFN")
        add(f"--{side}-layers", type=int, metavar="N", help=f"{side}: depth, counted in passes")
        add(f"--{side}-attention-heads", type=int, metavar="H", help=f"{side}: attention heads; must divide the width")
    add("--dropout", type=float, metavar="RATE", help="on embeddings and on every sublayer's output")
    add("--attention-dropout", type=float, metavar="RATE", help="on attention weights")
    add("--activation-dropout", "--relu-dropout", type=float, metavar="RATE", help="on the FFN's hidden units")
    add("--activation-fn", choices=utils.get_available_activation_fns(), help="activation of the FFN")
    add(
        "--share-decoder-input-output-embed",
        action="store_true",
        help="the decoder's embedding is the output matrix too",
    )
    add("--layernorm-embedding", action="store_true", help="LayerNorm on the embeddings")
    add("--no-scale-embedding", action="store_true", help="embeddings are not multiplied by sqrt(width)")
    add(
        "--checkpoint-activations",
        action="store_true",
        help="recompute each pass in the backward pass: less memory, about a third more work",
    )
    add_compile_option(parser)


def add_compile_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that every architecture has."""
    parser.add_argument(
        "--compile",
        nargs="?",
        const="inductor",
        choices=("inductor", "aot_eager", "eager"),
        help="torch.compile each stored block for training, once for all its passes, by this backend (inductor)",
    )


def known_options(add_args) -> set[str]:
    """Names of the values that a function adds to a parser."""
    parser = argparse.ArgumentParser(add_help=False)
    add_args(parser)
    return {action.dest for action in parser._actions}


def refuse_unknown(args, known: set[str]) -> None:
    """Raises ValueError where a configuration has a key that no option sets; a command line's parser does so itself."""
    if not isinstance(args, argparse.Namespace):
        unknown = set(args) - known - {"_name"}
        if unknown:
            raise ValueError(f"{sorted(unknown)[0]}: not an option of {args._name}")
