"""Print the score and the size in megabytes of a trained model in float32 and quantised to 8 bits, as JSON.

    python eight_bits.py text CHECKPOINT DATA SOURCE REFERENCE     translation with beam 5
    python eight_bits.py images CHECKPOINT IMAGES                  image classification

CHECKPOINT is written by fairseq-train, with the sentencepiece model beside it as `sentencepiece.bpe.model`, or by
train_image.py. DATA is the output folder of fairseq-preprocess; SOURCE and REFERENCE are plain text. IMAGES is a folder
that timm can read; its validation split is scored. torchao is skipped if it is not installed.
"""

import argparse
import copy
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from score import scores
from torch import nn
from torch.ao.quantization import quantize_dynamic

from recurrence.eight_bits import megabytes

Score = Callable[[nn.Module], dict[str, float]]


def torchao(config: str, model: nn.Module) -> nn.Module:
    """A copy of the model with its linear layers quantised by torchao."""
    from torchao import quantization

    quantised = copy.deepcopy(model)
    quantization.quantize_(quantised, getattr(quantization, config)())
    return quantised


QUANTISERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "float32": lambda model: model,
    "quantize_dynamic": lambda model: quantize_dynamic(model, {nn.Linear}),
}
if find_spec("torchao"):
    QUANTISERS |= {
        "torchao, weights": lambda model: torchao("Int8WeightOnlyConfig", model),
        "torchao, weights and activations": lambda model: torchao("Int8DynamicActivationInt8WeightConfig", model),
    }


def load_text(args: argparse.Namespace) -> tuple[nn.Module, Score]:
    """A translation model, and a function that returns its exact matches (%) and its BLEU."""
    from fairseq.models.transformer import TransformerModel

    import fairseq_plugin  # noqa: F401  (registers the models)

    checkpoint, data = args.checkpoint, str(args.data)
    pieces = str(checkpoint.with_name("sentencepiece.bpe.model"))
    hub = TransformerModel.from_pretrained(
        str(checkpoint.parent), checkpoint.name, data, bpe="sentencepiece", sentencepiece_model=pieces
    )
    source, reference = (path.read_text("utf-8").rstrip("\n").split("\n") for path in (args.source, args.reference))

    def score(model: nn.Module) -> dict[str, float]:
        hub.models = nn.ModuleList([model])
        translation_scores = scores(hub.translate(source, beam=5), reference, args.tokenize)
        return {name: translation_scores[name] for name in ("exact_match", "bleu")}

    return hub.models[0], score


def load_images(args: argparse.Namespace) -> tuple[nn.Module, Score]:
    """An image classifier, and a function that returns its top-1 accuracy (%)."""
    from timm.utils.checkpoint_saver import load_checkpoint_metadata

    from timm_plugin import repairs
    from timm_plugin.convert import load
    from timm_plugin.depth import accuracy, read_images

    repairs.apply()
    repairs.reject_unreadable_images()
    model, options = load(args.checkpoint), load_checkpoint_metadata(args.checkpoint)["args"]
    batches = read_images(args.images, "validation", model, dict(img_size=options.img_size))
    return model, lambda model: {"top1": round(accuracy(model, batches)[0], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    text, images = commands.add_parser("text"), commands.add_parser("images")
    for name in ("checkpoint", "data", "source", "reference"):
        text.add_argument(name, type=Path, metavar=name.upper())
    for name in ("checkpoint", "images"):
        images.add_argument(name, type=Path, metavar=name.upper())
    text.add_argument("--tokenize", default="char", help="sacreBLEU's tokenizer (default: char)")
    text.set_defaults(load=load_text)
    images.set_defaults(load=load_images)
    args = parser.parse_args()
    try:
        model, score = args.load(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    results = {}
    for name, quantise in QUANTISERS.items():
        quantised = quantise(model)
        results[name] = {**score(quantised), "megabytes": round(megabytes(quantised), 2)}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
