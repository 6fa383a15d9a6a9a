"""Loss, accuracy and standard errors of a model's answers, as the recipes record them."""

import json
import math
from types import SimpleNamespace

import answers
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.support import cli


def test_standard_errors_of_texts():
    random = np.random.default_rng(1)
    asked = np.array([4] * 199 + [2])
    means = random.normal(1.5, 0.25, 200)
    found = answers.scores(means * asked, np.arange(200) % 2 * asked, asked, batch=128)
    assert found["loss"] == pytest.approx((means * asked).sum() / asked.sum(), abs=5e-5)
    assert found["loss_error"] == pytest.approx(means.std(ddof=1) / math.sqrt(200), rel=1e-3)
    # The published formula is too small by the root of the batch beside 80 batches' own standard error.
    expected = means.std() / math.sqrt(128) / math.sqrt(80 * 128)
    assert found["loss_error_published"] == pytest.approx(expected, rel=0.2)
    assert found["accuracy"] == pytest.approx(100 * 398 / 798, abs=0.01)
    assert (found["texts"], found["symbols"]) == (200, 798)


def test_padding_is_never_correct():
    """Neither where the model predicts it, nor where a text has no target."""
    pad, symbols = 1, 5
    target = torch.tensor([[2, pad, pad], [3, 4, pad]])
    task = SimpleNamespace(
        target_dictionary=SimpleNamespace(pad=lambda: pad),
        load_dataset=lambda subset: None,
        dataset=lambda subset: None,
        get_batch_iterator=lambda *_, **__: SimpleNamespace(
            next_epoch_itr=lambda shuffle: [{"net_input": {"x": target}, "target": target}]
        ),
    )

    class Perfect(torch.nn.Linear):
        def forward(self, x):
            return F.one_hot(x, symbols).float(), None

    ((_, correct, targets),) = answers.text_sums(Perfect(1, 1), task, "test", 2)
    assert correct.tolist() == targets.tolist() == [1, 2]


@pytest.mark.slow
def test_a_checkpoint_is_scored_on_every_text(tmp_path):
    from fairseq import checkpoint_utils

    model = ["--arch", "recurrent_lm", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2"]
    task = ["--task", "copying", "--noise", "8", "--memorise", "4", "--train-texts", "16", "--valid-texts", "20"]
    train = ["--criterion", "answer_cross_entropy", "--optimizer", "adam", "--lr", "0.01", "--batch-size", "16"]
    where = [*cli.HOST, "--save-dir", tmp_path, "--max-epoch", "1"]
    cli.run("fairseq-train", *where, *task, *model, *train, "--seed", "3")
    path = tmp_path / "checkpoint_last.pt"
    log = cli.python(answers.__file__, "--path", path, "--subset", "test", "--batch", "8")
    found = json.loads(log[log.rindex("{") :])
    (model,), cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert cfg.task.noise == 8
    task.load_dataset("test")
    dataset = task.dataset("test")
    batch = dataset.collater([dataset[i] for i in range(20)])
    with torch.no_grad():
        logits, target = model.eval()(batch["net_input"]["src_tokens"])[0], batch["target"]
    asked = target.ne(16)
    assert found["loss"] == pytest.approx(F.cross_entropy(logits[asked], target[asked]).item(), abs=1e-4)
    assert found["accuracy"] == pytest.approx(100 * logits[asked].argmax(-1).eq(target[asked]).double().mean().item())
    assert (found["texts"], found["symbols"]) == (20, 80)
