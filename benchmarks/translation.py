"""Translation architectures against fairseq's `transformer` of the same width and depth: `make bench`.

Times are taken in one process, model by model in turn, so that a machine whose speed drifts slows all of them alike; a
figure is the median of the ratios of neighbouring runs. Peak memory is that of a process of its own for each model.

    python -m benchmarks.translation [--threads 2] [--rounds 7] [--arch ringformer_base --arch universal ...]
"""

import argparse
import subprocess
import sys

import torch
import torch.nn.functional as F
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator

from benchmarks.timing import DEVICE, ratios, show
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


def peak_memory(arch: str) -> int:
    """Bytes that parameters, gradients, Adam and activations of three training steps add to the process or the GPU."""
    symbols = numbered_dictionary(VOCABULARY)
    before = memory("VmRSS")
    model = build(arch, symbols)
    optimizer = torch.optim.Adam(model.parameters())
    step = training_step(model, symbols)
    for _ in range(3):
        step()
        optimizer.step()
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else memory("VmHWM") - before


def memory(field: str) -> int:
    """Resident memory of this process in bytes: now (VmRSS) or at its peak (VmHWM)."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def memory_of(arch: str, threads: int) -> int:
    """:func:`peak_memory` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.translation", "--threads", str(threads), "--peak-memory", arch]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--arch", action="append", help="architectures to measure (default: those of 512/2048)")
    parser.add_argument("--attention-dropout", type=float, default=RATES["attention_dropout"], metavar="RATE")
    parser.add_argument(
        "--no-onednn", action="store_true", help="take PyTorch's BLAS for all products, as the host does"
    )
    parser.add_argument("--peak-memory", metavar="ARCH", help="print the peak training memory of one, in bytes")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.backends.mkldnn.set_flags(not options.no_onednn)
    RATES["attention_dropout"] = options.attention_dropout
    if options.peak_memory:
        print(peak_memory(options.peak_memory))
        return
    symbols = numbered_dictionary(VOCABULARY)
    archs = (HOST, *(options.arch or ARCHS))
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{options.threads} threads"
    print(f"torch {torch.__version__}, {where}; {VOCABULARY} symbols; ratios against fairseq's {HOST}")
    models = {arch: build(arch, symbols) for arch in archs}
    steps = {arch: training_step(model, symbols) for arch, model in models.items()}
    show(f"Training step, {BATCH} x {LENGTH} tokens", ratios(steps, options.rounds, HOST), "seconds")
    searches = {arch: generation(model, symbols) for arch, model in models.items()}
    show(
        f"Beam {BEAM}, {SENTENCES} sentences one by one, {LENGTH} tokens",
        ratios(searches, options.rounds, HOST),
        "seconds",
    )
    peaks = {arch: memory_of(arch, options.threads) / 2**20 for arch in archs}
    show("Peak training memory", {arch: (mib, mib / peaks[HOST]) for arch, mib in peaks.items()}, "MiB")


if __name__ == "__main__":
    main()
