"""Compare Kausik's recurrence with the published formula and with a regular layer in speed and memory (`make bench`).

    python -m benchmarks.scan [--threads 2] [--rounds 5]

Training steps of `recurrent_lm` (width 384, 6 heads, 1 layer) on 16 texts of 256 characters are timed in one process,
in alternation. Peak memory is measured in a separate process for each model. recipes/kausik/linear_time.sh measures
both over the length of a text.
"""

import torch
import torch.nn.functional as F

from benchmarks.common import DEVICE, WEIGHTS, backward_pass, parser, peak_memory, ratios, set_up, show
from fairseq_plugin.build import build_language_model, numbered_dictionary
from tests.support.scan_reference import published

SYMBOLS, BATCH, LENGTH = 65, 16, 256
MODELS = {"as published": {}, "recurrent_lm": {}, "regular": {"regular": True}}


def build(name: str):
    """One of MODELS."""
    torch.manual_seed(0)
    model = build_language_model("recurrent_lm", numbered_dictionary(SYMBOLS), LENGTH, dropout=0.0, **MODELS[name])
    if name == "as published":
        stack = model.decoder.stack
        stack.forward = lambda x, *_, **__: published(stack.loop.blocks[0], x)
    return model.to(**WEIGHTS)


def training_step(model):
    """A function that runs one forward and backward pass."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, SYMBOLS, (BATCH, LENGTH + 1), generator=generator).to(DEVICE)
    targets = tokens[:, 1:].flatten()
    return backward_pass(model, lambda: F.cross_entropy(model(tokens[:, :-1])[0].flatten(0, 1), targets))


def main() -> None:
    """The command line."""
    options = parser(__doc__, rounds=5).parse_args()
    where = set_up(options, build, training_step)
    print(f"{where}; {BATCH} x {LENGTH} tokens, width 384, 6 heads, 1 layer")
    steps = {name: training_step(build(name)) for name in MODELS}
    show("Training step", ratios(steps, options.rounds, "as published"), "seconds")
    show("Peak training memory", peak_memory("benchmarks.scan", MODELS, "regular"), "MiB")


if __name__ == "__main__":
    main()
