"""Checkpoints that earlier versions wrote: every one loads and computes what it did, or is refused by name."""

import re
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.support import cli, public, small_corpus, stored
from timm_plugin import checkpoints

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

FOLDER = stored.REFERENCE / "checkpoints"
TABLE = tomllib.loads((FOLDER / "checkpoints.toml").read_text(encoding="utf-8"))
TRAINING = TABLE.pop("training")
VALUES = FOLDER / "checkpoints.safetensors"
REFUSED = [name for name, about in TABLE.items() if "refused" in about]
WARNED = [name for name, about in TABLE.items() if "warned" in about]
LOADED = [name for name in TABLE if name not in (*REFUSED, *WARNED)]


def load(earlier: Path, name: str) -> nn.Module:
    """The model of a checkpoint, in float64."""
    if "task" not in TABLE[name]:
        return checkpoints.load(earlier / f"{name}.pth.tar").double()
    (model,), *_ = checkpoint_utils.load_model_ensemble_and_task(
        [str(earlier / f"{name}.pt")], dict(data=str(earlier / "data"))
    )
    return model.double().eval()


@torch.no_grad()
def output(model: nn.Module, task: str | None) -> Tensor:
    """What a model gives for a fixed input."""
    if task is None:
        return model(public.weights((2, 3, *model.patch_embed.img_size)))
    tokens = torch.stack(public.rows((5, 5), public.SYMBOLS, seed=2))
    if task == "language_modeling":
        return model(tokens)[0]
    source, lengths = torch.stack(public.rows((4, 4), public.SYMBOLS, seed=1)), torch.tensor([4, 4])
    if task == "speech_to_text":
        source, lengths = public.weights((2, 12, small_corpus.FEATURES)), torch.tensor([12, 12])
    return model(source, lengths, tokens)[0]


@pytest.mark.parametrize("checkpoint", LOADED)
def test_a_checkpoint_loads_and_computes_what_it_did(earlier, checkpoint):
    found, expected = output(load(earlier, checkpoint), TABLE[checkpoint].get("task")), load_file(VALUES)[checkpoint]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("checkpoint", WARNED)
def test_a_checkpoint_that_computes_something_else_now_says_so(earlier, checkpoint, caplog):
    assert output(load(earlier, checkpoint), TABLE[checkpoint].get("task")).isfinite().all()
    assert TABLE[checkpoint]["warned"] in caplog.text


@pytest.mark.parametrize("checkpoint", REFUSED)
def test_weights_of_removed_parts_are_refused_by_name(earlier, checkpoint):
    with pytest.raises(ValueError, match=TABLE[checkpoint]["refused"].replace("_", "[-_]")):
        load(earlier, checkpoint)


@pytest.mark.parametrize("checkpoint", [name for name, about in TABLE.items() if about.get("resumes")])
def test_training_goes_on(earlier, checkpoint, tmp_path):
    """From its optimizer's state, without the options of depth, which are the criterion's now."""
    flags = re.sub(
        r" --(depth-range|depth-warmup-updates|pass-loss) \S+| --depth-apart", "", TABLE[checkpoint]["flags"]
    )
    flags = f"{TRAINING['fairseq']} {TRAINING['translation']} {flags} --max-update 6 --log-format json".split()
    started = ("--restore-file", earlier / f"{checkpoint}.pt", "--save-dir", tmp_path)
    log = cli.run("fairseq-train", earlier / "data", "--user-dir", cli.PLUGIN, *flags, *started)
    assert "num_updates: 6" in log
