"""Print what eight bits cost a trained model: its score and its megabytes, in float32 and quantised, as JSON.

    python eight_bits.py text CHECKPOINT DATA SOURCE REFERENCE     translations, by beam 5
    python eight_bits.py images CHECKPOINT IMAGES                  the classes of pictures

CHECKPOINT is a file of fairseq's trainer, with the sentencepiece model beside it as `sentencepiece.bpe.model`, or of
train_image.py; DATA what fairseq-preprocess wrote; SOURCE and REFERENCE are plain text; IMAGES a folder as timm reads
it, of which the validation split counts. torchao is left out where it is not installed.
"""

import argparse
import copy
import io
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from score import scores
from torch import nn
from torch.ao.quantization import quantize_dynamic

Score = Callable[[nn.Module], dict[str, float]]


def torchao(config: str, model: nn.Module) -> nn.Module:
    """A copy whose linear layers torchao has quantised."""
    from torchao import quantization

    quantised = copy.deepcopy(model)
    quantization.quantize_(quantised, getattr(quantization, config)())
    return quantised


KINDS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "float32": lambda model: model,
    "quantize_dynamic": lambda model: quantize_dynamic(model, {nn.Linear}),
}
if find_spec("torchao"):
    KINDS |= {
        "torchao, weights": lambda model: torchao("Int8WeightOnlyConfig", model),
        "torchao, weights and activations": lambda model: torchao("Int8DynamicActivationInt8WeightConfig", model),
    }


def megabytes(model: nn.Module) -> float:
    """Of the stored weights."""
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return round(len(file.getvalue()) / 1e6, 2)


def text(args: argparse.Namespace) -> tuple[nn.Module, Score]:
    """A translation model, and what scores it: exact matches and BLEU over characters."""
    from fairseq.models.transformer import TransformerModel

    import fairseq_plugin  # noqa: F401  (registers the models)

    pieces = str(args.checkpoint.with_name("sentencepiece.bpe.model"))
    given = dict(bpe="sentencepiece", sentencepiece_model=pieces)
    hub = TransformerModel.from_pretrained(str(args.checkpoint.parent), args.checkpoint.name, str(args.data), **given)
    source, reference = (path.read_text("utf-8").rstrip("\n").split("\n") for path in (args.source, args.reference))

    def score(model: nn.Module) -> dict[str, float]:
        hub.models = nn.ModuleList([model])
        found = scores(hub.translate(source, beam=5), reference, args.tokenize)
        return {name: found[name] for name in ("exact_match", "bleu")}

    return hub.models[0], score


def images(args: argparse.Namespace) -> tuple[nn.Module, Score]:
    """A classifier, and what scores it: how often the likeliest class is the right one."""
    from timm.data import create_dataset, create_loader, resolve_data_config
    from timm.utils.checkpoint_saver import load_checkpoint_metadata

    from timm_plugin.convert import load
    from timm_plugin.depth import accuracy

    model, options = load(args.checkpoint), load_checkpoint_metadata(args.checkpoint)["args"]
    config = resolve_data_config(dict(img_size=options.img_size, crop_pct=options.crop_pct), model=model)
    loader = create_loader(
        create_dataset("", str(args.images), split="validation"),
        *(config["input_size"], 64),
        use_prefetcher=False,
        num_workers=0,
        **{name: config[name] for name in ("interpolation", "mean", "std", "crop_pct")},
    )
    batches = list(loader)
    return model, lambda model: {"top1": round(accuracy(model, batches)[0], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    of_text, of_images = commands.add_parser("text"), commands.add_parser("images")
    for name in ("checkpoint", "data", "source", "reference"):
        of_text.add_argument(name, type=Path, metavar=name.upper())
    for name in ("checkpoint", "images"):
        of_images.add_argument(name, type=Path, metavar=name.upper())
    of_text.add_argument("--tokenize", default="char", help="how BLEU cuts the text (default: char)")
    of_text.set_defaults(read=text)
    of_images.set_defaults(read=images)
    args = parser.parse_args()
    model, score = args.read(args)
    found = {}
    for kind, quantise in KINDS.items():
        quantised = quantise(model)
        found[kind] = score(quantised) | {"megabytes": megabytes(quantised)}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
