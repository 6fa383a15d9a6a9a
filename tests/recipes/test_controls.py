"""The controls of RingFormer in README's table are those that the two comparisons derive from its command line."""

from pathlib import Path

import pytest
import timm
import torch
from fairseq import options

import timm_plugin  # noqa: F401  (registers its models)
from fairseq_plugin.controls import TextControls
from recurrence import count
from recurrence.comparison.controls import as_large
from tests.support import translation
from tests.support.recipes import TRAINER, commands, image_training

SYMBOLS = 5904  # in the joint dictionary of Multi30k
SIZES = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")


def training(script: str, row: str, folder: Path) -> list[str]:
    """The words of a row's training, after the program."""
    for words in commands(script, row, SCALE="small", OUT=str(folder), DATA_ROOT=""):
        if words[0] == "fairseq-train":
            return words[1:]
        if words[:2] == ["python", TRAINER]:
            return words[2:]
    raise AssertionError(f"{script} {row}: trains nothing")


def translation_model(words):
    """The options of a command line of fairseq-train, and its model."""
    args = options.parse_args_and_arch(options.get_training_parser(), list(words))
    with torch.device("meta"):
        return args, translation.task(SYMBOLS, SYMBOLS).build_model(args)


@pytest.mark.parametrize(("derived", "row"), [("once", "once"), ("narrow", "narrow_tuned"), ("deep", "vanilla")])
def test_controls_of_translation(derived, row, tmp_path):
    words = training("multi30k/train.sh", "ringformer", tmp_path)
    args, looped = translation_model(words)
    assert count.stored(looped) == 3_624_720
    flags = TextControls(args, words, looped, lambda given: translation_model(given)[1]).flags([derived])
    found, wanted = translation_model(flags[derived]), translation_model(training("multi30k/train.sh", row, tmp_path))
    for name in ("arch", *(f"{side}_{size}" for side in translation.SIDES for size in SIZES)):
        assert getattr(found[0], name) == getattr(wanted[0], name), name
    assert count.stored(found[1]) == count.stored(wanted[1])


@pytest.mark.parametrize(("derived", "row"), [("once", "once"), ("storage", "storage"), ("deep", "plain")])
def test_controls_of_images(derived, row, tmp_path):
    model, kwargs = image_training(training("cifar10/train.sh", "ringformer", tmp_path))
    looped = timm.create_model(model, device="meta", num_classes=10, **kwargs)
    config = looped.config
    blocks = [loop.passes if derived == "deep" else len(loop.blocks) for loop in looped.loops()]

    def control(**sizes):
        wanted = {**config.unshared(blocks), **sizes}
        return timm.create_model(wanted.pop("model"), device="meta", **wanted)

    def stored(*steps):
        return count.stored(control(**config.more_heads(*steps)))

    target = count.stored(looped)
    found = control(**config.more_heads(*as_large("storage", stored, target))) if derived == "storage" else control()
    model, kwargs = image_training(training("cifar10/train.sh", row, tmp_path))
    wanted = timm.create_model(model, device="meta", num_classes=10, **kwargs)
    for name in ("depth", "embed_dim", "num_heads", "mlp_ratio"):
        assert getattr(found.config, name) == getattr(wanted.config, name), name
    assert target == 276_362
    assert count.stored(found) == count.stored(wanted)
