"""Count the stored parameters of a language model and the operations of its training, and print them as JSON.

    PYTHONPATH=. python recipes/metrics/flops.py --symbols 1024 --text 1024 --texts 64 -- FLAGS > scores.json

FLAGS are those of fairseq-train, such as `--arch ilr_small --max-update 7629`. Counts the matrix products of a forward
and a backward pass, two operations per multiply-accumulate, and takes attention matrices as full although they are
causal. Elementwise operations are not counted. The model's weights are never allocated.
"""

import argparse

import torch
import torch.nn.functional as F
from arguments import parser, print_scores

from benchmarks.common import positive
from fairseq_plugin.build import architectures, build_language_model, given_options, numbered_dictionary
from fairseq_plugin.language_model import LanguageModel
from recurrence.count import flops, stored


def per_text(symbols: int, text: int, flags: list[str]) -> dict[str, int]:
    """The model's parameters, and operations on one text: of the forward pass, and of both passes ("both")."""
    of_arch = argparse.ArgumentParser(allow_abbrev=False)
    of_arch.add_argument("--arch", choices=architectures(LanguageModel), required=True)
    args, other_flags = of_arch.parse_known_args(flags)
    options, _ = given_options(args.arch, other_flags)  # the trainer's own flags are ignored
    with torch.device("meta"):
        model = build_language_model(args.arch, numbered_dictionary(symbols), text, **options)
        tokens = torch.zeros(1, text, dtype=torch.long)

    def loss():
        decoder = model.decoder
        x = decoder.run(decoder.inputs(decoder.embed_tokens(tokens), None), None, None, None)
        logits = decoder.output_layer(decoder.finish(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    return {"params": stored(model), "forward": flops(loss), "both": flops(lambda: loss().backward())}


def measured(args: argparse.Namespace) -> dict[str, int]:
    """The parameters, the operations on a symbol, and those of the whole training."""
    flags = [flag for flag in args.flags if flag != "--"]
    trainer = argparse.ArgumentParser(allow_abbrev=False)
    trainer.add_argument("--max-update", type=positive, required=True)
    operations, trained = per_text(args.symbols, args.text, flags), trainer.parse_known_args(flags)[0]
    total = operations["both"] * args.texts * trained.max_update
    forward = operations["forward"] // args.text
    return {"params": operations["params"], "forward_flops_per_symbol": forward, "training_flops": total}


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("--symbols", type=positive, required=True, help="dictionary size")
    command_line.add_argument("--text", type=positive, required=True, help="tokens per text")
    command_line.add_argument("--texts", type=positive, required=True, help="texts per update")
    command_line.add_argument("flags", nargs=argparse.REMAINDER, help="-- and the flags of the training")
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
