"""Compare the speed of translation models with fairseq's `transformer` of the same width and depth (`make bench`).

python -m benchmarks.translation [--threads 2] [--rounds 7] [--dtype bfloat16] [--tokens 4000] [--arch universal ...]
"""

from argparse import Namespace
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor, nn

from benchmarks.common import DEVICE, WEIGHTS, backward_pass, parser, peak_memory, ratios, set_up, show
from fairseq_plugin.build import architectures, build_architecture, numbered_dictionary
from fairseq_plugin.models.speech import SpeechToText
from fairseq_plugin.seq2seq import LoopedTransformer

UPSTREAM = "transformer"
ARCHS = ("ringformer_base", "universal", "one_wide_ffn_base", "vanilla_base")
BATCH, LENGTH, VOCABULARY, BEAM, SENTENCES = 24, 28, 8000, 4, 3
# The same dropout rates in all models, instead of their defaults.
RATES = dict(dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
Batch = tuple[Tensor, Tensor, Tensor]


def build(arch: str, symbols: Dictionary):
    """A model at its registered size, 6 + 6 passes, with RATES."""
    torch.manual_seed(0)
    return build_architecture(arch, symbols, symbols, **RATES).to(**WEIGHTS)


def batch(symbols: Dictionary, sentences: int) -> Batch:
    """Random source (B, S), lengths (B,) and target (B, T), without padding."""
    generator = torch.Generator().manual_seed(0)
    source, target = (
        torch.randint(symbols.nspecial, VOCABULARY, (sentences, LENGTH), generator=generator).to(DEVICE)
        for _ in range(2)
    )
    return source, torch.full((sentences,), LENGTH, device=DEVICE), target


def training_step(model: nn.Module, inputs: Batch) -> Callable[[], None]:
    """A function that runs one forward and backward pass."""
    targets = inputs[-1].flatten()
    return backward_pass(model, lambda: F.cross_entropy(model(*inputs)[0].flatten(0, 1), targets))


def generation(model: nn.Module, symbols: Dictionary, inputs: Batch) -> Callable[[], None]:
    """A function that decodes one source at a time with fairseq's beam search, to the length of the targets.

    The model is prepared as in fairseq-generate and can no longer be trained.
    """
    source, lengths, target = inputs
    model.make_generation_fast_()
    length = target.size(1)
    search = SequenceGenerator([model], symbols, beam_size=BEAM, max_len_a=0, max_len_b=length, min_len=length)

    def generate():
        model.eval()
        for index in range(len(source)):
            row = slice(index, index + 1)
            search.generate([model], {"net_input": {"src_tokens": source[row], "src_lengths": lengths[row]}})

    return generate


def compare(options: Namespace, archs: Sequence[str], trained_on: int) -> None:
    """Prints the time of training steps and of beam search and the peak memory, relative to the first architecture.

    Args:
        options: parsed command line.
        archs: fairseq's architecture, and those to compare with it.
        trained_on: number of sentences in a training step.
    """
    symbols = numbered_dictionary(VOCABULARY)
    trained, searched = batch(symbols, trained_on), batch(symbols, SENTENCES)
    where = set_up(options, lambda arch: build(arch, symbols), lambda model: training_step(model, trained))
    upstream = archs[0]
    print(f"{where}; {VOCABULARY} symbols; ratios against fairseq's {upstream}")
    models = {arch: build(arch, symbols) for arch in archs}
    steps = {arch: training_step(model, trained) for arch, model in models.items()}
    show(f"Training step, {trained_on} x {LENGTH} tokens", ratios(steps, options.rounds, upstream), "seconds")
    searches = {arch: generation(model, symbols, searched) for arch, model in models.items()}
    title = f"Beam {BEAM}, {SENTENCES} one by one, {LENGTH} tokens"
    show(title, ratios(searches, options.rounds, upstream), "seconds")
    show("Peak training memory", peak_memory("benchmarks.translation", archs, upstream), "MiB")


def main() -> None:
    """The command line."""
    arguments = parser(__doc__, rounds=7)
    add, known = arguments.add_argument, architectures(LoopedTransformer, but=SpeechToText)
    measured = "architecture to measure; repeat for several (default: those of 512/2048)"
    add("--arch", action="append", choices=known, metavar="ARCH", help=measured)
    add("--tokens", type=int, default=BATCH * LENGTH, help="target tokens per training step")
    options = arguments.parse_args()
    if options.tokens < LENGTH:
        arguments.error(f"--tokens {options.tokens}: must be at least {LENGTH}, a sentence")
    archs, trained_on = (UPSTREAM, *(options.arch or ARCHS)), options.tokens // LENGTH
    compare(options, archs, trained_on)


if __name__ == "__main__":
    main()
