"""Measure the overhead of reuse maps in language models and the gain of cached generation (`make bench`).

    python -m benchmarks.language [--threads 2] [--rounds 9] [--position rotary]

A reuse map should cost its passes and nothing more: its training step is compared with the step of 1,1,1,1 times the
ratio of their passes. Cached generation is compared with running the full text again for every token.
"""

import torch
import torch.nn.functional as F

from benchmarks.common import DEVICE, WEIGHTS, backward_pass, parser, peak_memory, ratios, set_up, show
from fairseq_plugin.build import build_language_model, numbered_dictionary
from recurrence.position import POSITIONS

SYMBOLS, LENGTH, BATCH = 1024, 1024, 4
TOKENS = 8
ENDS = range(LENGTH - TOKENS, LENGTH)
PLAIN, LOOPED = "1,1,1,1", "4,2,1,1"


def build(reuse: str, position: str):
    """`ilr_small` with a reuse map."""
    torch.manual_seed(0)
    symbols = numbered_dictionary(SYMBOLS)
    return build_language_model("ilr_small", symbols, LENGTH, reuse_map=reuse, position=position).to(**WEIGHTS)


def texts(batch: int) -> torch.Tensor:
    """Random symbols (B, LENGTH)."""
    return torch.randint(4, SYMBOLS, (batch, LENGTH), generator=torch.Generator().manual_seed(0)).to(DEVICE)


def training_step(model):
    """A function that runs one forward and backward pass."""
    tokens = texts(BATCH)
    targets = tokens[:, 1:].flatten()
    return backward_pass(model, lambda: F.cross_entropy(model(tokens)[0][:, :-1].flatten(0, 1), targets))


def generation(model, cached: bool):
    """A function that computes the logits of the last TOKENS tokens of a text of LENGTH, one after the other."""
    tokens, state = texts(1), {}
    if cached:
        with torch.no_grad():
            model.eval().decoder(tokens[:, : LENGTH - TOKENS], incremental_state=state)
        text = state[model.decoder.KEY]

    @torch.no_grad()
    def following():
        if cached:
            text.length = text.stack.cache.length = LENGTH - TOKENS  # what the last call has read is written over
            steps = [model.decoder(tokens[:, : end + 1], incremental_state=state)[0] for end in ENDS]
        else:
            steps = [model.eval().decoder(tokens[:, : end + 1], features_only=True)[0][:, -1:] for end in ENDS]
            steps = [model.decoder.output_layer(features) for features in steps]
        return torch.cat(steps, dim=1)

    return following


def main() -> None:
    """The command line."""
    arguments = parser(__doc__, rounds=9)
    arguments.add_argument("--position", default="rotary", choices=POSITIONS)
    options = arguments.parse_args()
    where = set_up(options, lambda reuse: build(reuse, options.position), training_step)
    print(f"{where}; ilr_small, {SYMBOLS} symbols, positions: {options.position}")

    plain, looped = build(PLAIN, options.position), build(LOOPED, options.position)
    steps = {PLAIN: training_step(plain), LOOPED: training_step(looped)}
    rows = ratios(steps, options.rounds, PLAIN)
    show(f"Training step, {BATCH} x {LENGTH} tokens", rows, "seconds")
    passes = [model.decoder.stack.loop.passes for model in (looped, plain)]
    print(f"{LOOPED}: {rows[LOOPED][1] * passes[1] / passes[0]:.3f} x {passes[0]} / {passes[1]} of the step of {PLAIN}")

    show("Peak training memory", peak_memory("benchmarks.language", [PLAIN, LOOPED], PLAIN), "MiB")

    text = {"recomputed": generation(looped, False), "cached": generation(looped, True)}
    difference = (text["cached"]() - text["recomputed"]()).abs().max().item()
    rows = ratios(text, options.rounds, "recomputed")
    show(f"{TOKENS} tokens after about {LENGTH}, {LOOPED}", rows, "seconds")
    print(f"{1 / rows['cached'][1]:.1f} times the tokens per second; logits differ by {difference:.1e}")


if __name__ == "__main__":
    main()
