"""Unshared models in CTranslate2, by its own converter of fairseq's checkpoints: the same scores, stored once."""

from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_plugin import convert

ctranslate2 = pytest.importorskip("ctranslate2")

from ctranslate2.converters import FairseqConverter  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unshared(trained, tmp_path_factory) -> Path:
    """fairseq's checkpoint of the trained RingFormer."""
    path = tmp_path_factory.mktemp("ctranslate2") / "unshared.pt"
    convert.main(["unshare", str(trained.folder / "checkpoint_last.pt"), str(path)])
    return path


def export(checkpoint: Path, data: Path, **options) -> Path:
    """The folder of the converted model."""
    folder = checkpoint.with_name("-".join([checkpoint.stem, *options.values()]))
    FairseqConverter(str(checkpoint), str(data), "en", "de").convert(str(folder), **options)
    return folder


def test_it_scores_as_fairseq_does(unshared, corpus, trained):
    """Every word of the references, and the end of each."""
    path = str(trained.folder / "checkpoint_last.pt")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([path], dict(data=str(corpus.data)))
    task.load_dataset("valid")
    words, dataset = task.target_dictionary, task.dataset("valid")
    batch = dataset.collater([dataset[index] for index in range(8)])
    with torch.no_grad():
        log_probabilities = model.eval()(**batch["net_input"])[0].log_softmax(-1)
    expected = log_probabilities.gather(2, batch["target"][..., None])[..., 0]
    rows = (batch["net_input"]["src_tokens"], batch["target"])
    sources, targets = ([words.string(row[row.ne(words.pad())]).split() for row in part] for part in rows)
    translator = ctranslate2.Translator(str(export(unshared, corpus.data)), intra_threads=1)
    for result, row, target in zip(translator.score_batch(sources, targets), expected, targets):
        found = torch.tensor(result.log_probs)
        assert len(found) == len(target) + 1
        torch.testing.assert_close(found, row[: len(found)], rtol=0, atol=1e-4)
