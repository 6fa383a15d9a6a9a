"""Print the training speed of a fairseq model and its ratio to another model's (Takase & Kiyono, Tables 1 and 4).

    PYTHONPATH=. python recipes/metrics/speed.py cycle --beside universal_wide [--rounds 7] [flags] > scores.json

`--init` applies to both models: the paper trains all of its translation models with Admin.

A training step is a forward pass, a backward pass and an update by fairseq's Adam, which the paper also includes: it is
cheaper with fewer parameters (footnote 5). The two models alternate, so that drift in the machine's speed affects both;
`speed` is the median over rounds of the ratio of two consecutive steps. In float32 and without padding: sentences of 28
tokens with 32,768 joint symbols, or utterances of 5 seconds and 28 tokens with 10,000 symbols. The paper measured on a
V100.
"""

import json
from collections.abc import Callable

import torch
from arguments import parser
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.adam import Adam
from torch import nn

import fairseq_plugin  # noqa: F401  (registers the models)
from benchmarks.common import DEVICE, positive, ratios
from benchmarks.translation import LENGTH, training_step
from fairseq_plugin.build import build_architecture, given_options, numbered_dictionary
from fairseq_plugin.models.speech import SpeechToText

JOINT, WRITTEN = 32_768, 10_000  # symbols of the joint vocabulary of text, and of the transcripts of speech
FRAMES, FEATURES = 500, 80  # of an utterance


def is_speech_model(arch: str) -> bool:
    return issubclass(ARCH_MODEL_REGISTRY[arch], SpeechToText)


def build(arch: str, **options) -> nn.Module:
    """The model at full size, with the vocabularies of the paper's corpora."""
    torch.manual_seed(0)
    if is_speech_model(arch):
        features = dict(input_feat_per_channel=FEATURES, input_channels=1, share_decoder_input_output_embed=True)
        return build_architecture(arch, None, numbered_dictionary(WRITTEN), **features, **options).to(DEVICE)
    symbols = numbered_dictionary(JOINT)
    return build_architecture(arch, symbols, symbols, share_all_embeddings=True, **options).to(DEVICE)


def batch(speech: bool, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random source, source lengths and target, the target with about the given number of tokens."""
    generator = torch.Generator().manual_seed(0)
    rows = max(1, tokens // LENGTH)
    target = torch.randint(4, WRITTEN, (rows, LENGTH), generator=generator)
    if speech:
        source = torch.randn(rows, FRAMES, FEATURES, generator=generator)
    else:
        source = torch.randint(4, JOINT, (rows, LENGTH), generator=generator)
    lengths = torch.full((rows,), source.size(1))
    return source.to(DEVICE), lengths.to(DEVICE), target.to(DEVICE)


def update(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Callable[[], None]:
    """A function that performs one training step."""
    optimizer = Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-4)
    step = training_step(model, inputs)

    def run():
        step()
        optimizer.step()

    return run


def measure(arch: str, beside: str, tokens: int, rounds: int, options: dict) -> dict[str, float]:
    """Times both models in alternation, `beside` with its preset options and the other's `--init`.

    Raises:
        ValueError: if one model reads speech and the other text.
    """
    if is_speech_model(arch) != is_speech_model(beside):
        raise ValueError(f"--beside {beside}: must read what {arch} reads")
    inputs, same = batch(is_speech_model(arch), tokens), {key: options[key] for key in ("init",) if key in options}
    models = {"model": build(arch, **options), "beside": build(beside, **same)}
    times = ratios({name: update(model, inputs) for name, model in models.items()}, rounds, "beside")
    seconds, ratio = times["model"]
    return {"speed": round(1 / ratio, 3), "tokens_per_s": round(inputs[2].numel() / seconds, 1)}


def main() -> None:
    command_line = parser(__doc__, allow_abbrev=False)
    add, archs = command_line.add_argument, sorted(ARCH_MODEL_REGISTRY)
    add("arch", choices=archs, metavar="ARCH")
    add("--beside", choices=archs, metavar="ARCH", required=True)
    add("--tokens", type=positive, default=3584, help="target tokens per step (default 3584, as in the release)")
    add("--rounds", type=positive, default=7)
    args, flags = command_line.parse_known_args()
    options, others = given_options(args.arch, flags)
    if others:
        command_line.error(f"{others[0]}: not an option of {args.arch}")
    try:
        print(json.dumps(measure(args.arch, args.beside, args.tokens, args.rounds, options), indent=2))
    except ValueError as error:
        command_line.error(str(error))


if __name__ == "__main__":
    main()
