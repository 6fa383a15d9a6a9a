"""Translation architectures against fairseq's `transformer` of the same width and depth: `make bench`.

python -m benchmarks.translation [--threads 2] [--rounds 7] [--arch ringformer_base --arch universal ...]
"""

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from benchmarks.common import DEVICE, parser, peak_memory, ratios, set_up, show, training_peak
from fairseq_plugin.modules.build import build_architecture, numbered_dictionary

HOST = "transformer"
ARCHS = ("ringformer_base", "universal", "one_wide_ffn_base", "vanilla_base")
BATCH, LENGTH, VOCABULARY, BEAM, SENTENCES = 24, 28, 8000, 4, 3
# The same rates everywhere, whatever an architecture's own defaults.
RATES = dict(dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)


def build(arch: str, symbols: Dictionary):
    """A model at its registered size, 6 + 6 passes, with RATES."""
    torch.manual_seed(0)
    return build_architecture(arch, symbols, symbols, **RATES).to(DEVICE)


def batch(symbols: Dictionary, sentences: int):
    """Source (B, S), lengths (B,) and target (B, T) of random symbols without padding."""
    generator = torch.Generator().manual_seed(0)
    source, target = (
        torch.randint(symbols.nspecial, VOCABULARY, (sentences, LENGTH), generator=generator).to(DEVICE)
        for _ in range(2)
    )
    return source, torch.full((sentences,), LENGTH, device=DEVICE), target


def training_step(model, symbols: Dictionary):
    """A function that runs one forward and backward pass."""
    source, lengths, target = batch(symbols, BATCH)

    def step():
        model.train().zero_grad()
        logits, _ = model(source, lengths, target)
        F.cross_entropy(logits.flatten(0, 1), target.flatten()).backward()

    return step


def generation(model, symbols: Dictionary):
    """A function that translates sentence by sentence with fairseq's beam search, to LENGTH tokens each."""
    source, lengths, _ = batch(symbols, SENTENCES)
    search = SequenceGenerator([model], symbols, beam_size=BEAM, max_len_a=0, max_len_b=LENGTH, min_len=LENGTH)

    def translate():
        model.eval()
        for index in range(SENTENCES):
            one = slice(index, index + 1)
            search.generate([model], {"net_input": {"src_tokens": source[one], "src_lengths": lengths[one]}})

    return translate


def main() -> None:
    """The command line."""
    arguments = parser(__doc__, rounds=7)
    arguments.add_argument("--arch", action="append", help="architectures to measure (default: those of 512/2048)")
    arguments.add_argument("--attention-dropout", type=float, default=RATES["attention_dropout"], metavar="RATE")
    options = arguments.parse_args()
    where, symbols = set_up(options), numbered_dictionary(VOCABULARY)
    RATES["attention_dropout"] = options.attention_dropout
    if options.peak_memory:
        print(training_peak(lambda: build(options.peak_memory, symbols), lambda model: training_step(model, symbols)))
        return
    archs = (HOST, *(options.arch or ARCHS))
    print(f"{where}; {VOCABULARY} symbols; ratios against fairseq's {HOST}")
    models = {arch: build(arch, symbols) for arch in archs}
    steps = {arch: training_step(model, symbols) for arch, model in models.items()}
    show(f"Training step, {BATCH} x {LENGTH} tokens", ratios(steps, options.rounds, HOST), "seconds")
    searches = {arch: generation(model, symbols) for arch, model in models.items()}
    title = f"Beam {BEAM}, {SENTENCES} sentences one by one, {LENGTH} tokens"
    show(title, ratios(searches, options.rounds, HOST), "seconds")
    show("Peak training memory", peak_memory("benchmarks.translation", archs, HOST), "MiB")


if __name__ == "__main__":
    main()
