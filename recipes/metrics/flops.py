"""Floating-point operations of training a language model, counted, as JSON.

    python flops.py --symbols 1024 --text 1024 --texts 64 --updates 7629 -- --arch ilr_small [flags of fairseq-train]

Two for each multiplication with its addition, in all matrix products of a forward and a backward pass on one text, full
attention matrices included; elementwise work is left out. The model is built without memory for its weights.
"""

import argparse
import json

import torch
import torch.nn.functional as F
from fairseq.models import ARCH_MODEL_REGISTRY

import fairseq_plugin  # noqa: F401  (registers the models)
from fairseq_plugin.modules.build import build_language_model, given_options, numbered_dictionary
from recurrence.count import flops


def per_text(symbols: int, text: int, flags: list[str]) -> dict[str, int]:
    """Operations of the forward pass, and of both passes, on one text."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--arch", choices=sorted(ARCH_MODEL_REGISTRY), required=True)
    given, others = parser.parse_known_args(flags)
    options, _ = given_options(given.arch, others)  # flags of the trainer are passed over
    with torch.device("meta"):
        model = build_language_model(given.arch, numbered_dictionary(symbols), text, **options)
        tokens = torch.zeros(1, text, dtype=torch.long)

    def loss():
        logits = model.output_layer(model.decoder.stack(model.decoder.inputs(tokens, None)[0]))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    return {"forward": flops(loss), "both": flops(lambda: loss().backward())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, what in (
        ("symbols", "size of the dictionary"),
        ("text", "length of a text"),
        ("texts", "texts an update"),
    ):
        parser.add_argument(f"--{name}", type=int, required=True, help=what)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="-- and the model's flags")
    arguments = parser.parse_args()
    counted = per_text(arguments.symbols, arguments.text, [flag for flag in arguments.flags if flag != "--"])
    total = counted["both"] * arguments.texts * arguments.updates
    print(json.dumps({"forward_flops_per_symbol": counted["forward"] // arguments.text, "training_flops": total}))


if __name__ == "__main__":
    main()
