"""The messages of commands: errors and warnings."""

import logging
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.modules import AdaptiveSoftmax
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from omegaconf import MissingMandatoryValue, OmegaConf

from fairseq_repairs.checkpoints import CheckpointError, load_safely
from fairseq_repairs.interactive import warn_of_unknown_words
from fairseq_repairs.messages import name_nonfinite_updates, one_line, require_adaptive_loss
from tests.support import upstream

RANK = """

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "wrap.py", line 1, in _wrap
    fn(i, *args)
fairseq.SomeError: no
ValueError: --lr 0: must be > 0
"""
WORKER = """Caught {} in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "worker.py", line 1, in _worker_loop
    data = fetcher.fetch(index)
{}
"""
NO_FIT = Exception("no fit.")
NO_FIT.__context__ = RuntimeError("sizes:\n\t2, 3")
NO_FIT_OF_MANY = Exception("no fit.")
NO_FIT_OF_MANY.__context__ = RuntimeError('Error(s) in loading state_dict for X:\n\tMissing key(s): "a", "b", "c". ')
with pytest.raises(IndexError) as raised:
    torch.nn.functional.embedding(torch.tensor([9]), torch.zeros(3, 2))
BEYOND = raised.value
LINES = {
    "loops=0: must be >= 1": ValueError("loops=0: must be >= 1"),
    "[Errno 2] No such file or directory: 'x'": FileNotFoundError(2, "No such file or directory", "x"),
    "KeyError: 'x'": KeyError("x"),
    "x.pt: empty": CheckpointError("x.pt: empty"),
    "AssertionError": AssertionError(),
    "the data have a symbol beyond the dictionary: damaged, or binarized with another one?": BEYOND,
    "RuntimeError: two lines": RuntimeError("two\n\tlines"),
    "Exception: no fit. (sizes: 2, 3)": NO_FIT,
    'Exception: no fit. (Error(s) in loading state_dict for X: Missing key(s): "a" and 2 more. )': NO_FIT_OF_MANY,
    "--lr 0: must be > 0": torch.multiprocessing.ProcessRaisedException(RANK, 1, 1),
    "x.wav: no such file": ValueError(
        WORKER.format("AudioError", "fairseq_repairs.audio.AudioError: x.wav: no such file")
    ),
    "RuntimeError: y": RuntimeError(WORKER.format("RuntimeError", "RuntimeError: y")),
    "x" * 600 + " ...": ValueError("x" * 10_000),
}


@pytest.mark.parametrize(("text", "error"), LINES.items(), ids=[text[:30] for text in LINES])
def test_an_error_is_one_line(text, error):
    assert one_line(error) == text


def test_gradients_that_differ_between_ranks_are_finite():
    def step(trainer):
        raise FloatingPointError(
            "Fatal error: gradients are inconsistent between workers. Try --ddp-backend=legacy_ddp."
        )

    with pytest.raises(FloatingPointError, match="^Fatal error: gradients are inconsistent between workers"):
        name_nonfinite_updates(step, SimpleNamespace(get_num_updates=lambda: 0))


def test_weights_that_do_not_fit_are_named_with_their_file(trained_once, tmp_path):
    """torch lists every key, and names no file."""
    state = load_safely(trained_once("transformer")[1])
    renamed = [key for key in state["model"] if key.startswith("decoder.layers.0.self_attn")]
    for key in renamed:
        state["model"][key.replace("self_attn", "attention")] = state["model"].pop(key)
    state["model"]["decoder.output_projection.weight"] = torch.zeros(9, 8)
    torch.save(state, path := tmp_path / "model.pt")
    with pytest.raises(ValueError, match="does not fit") as raised:
        checkpoint_utils.load_model_ensemble_and_task([str(path)])
    more, old = f"and {len(renamed) - 1} more.", renamed[0]
    assert str(raised.value).startswith(
        f'{path}: does not fit its model: Missing key(s) in state_dict: "{old}" {more} '
        f'Unexpected key(s) in state_dict: "{old.replace("self_attn", "attention")}" {more} '
        "size mismatch for decoder.output_projection.weight: "
    )
    assert one_line(raised.value) == str(raised.value)


def test_a_dictionary_of_another_size_is_named(trained_once, tmp_path):
    """As with data that were binarized anew."""
    data, path = trained_once("transformer")
    other = shutil.copytree(data, tmp_path / "other")
    with (other / "dict.de.txt").open("a") as words:
        words.write("new 1\n")
    size = len(Dictionary.load(str(data / "dict.de.txt")))
    more = f"was trained with a target dictionary of {size} symbols, but the data's has {size + 1}: binarize them with "
    with pytest.raises(ValueError, match=f"^{path}: {more}"):
        upstream.run_training("transformer", other, tmp_path / "run", "--finetune-from-model", path)
    with pytest.raises(ValueError, match=f"^{path}: {more}"):
        upstream.use("generate", other, path)


def test_options_of_another_model_are_named(trained_once, tmp_path):
    data, path = trained_once("transformer")
    flags = ("--finetune-from-model", path, "--decoder-layers", "2", "--dropout", "0.3")
    with pytest.raises(ValueError, match=f"^{path}: its weights .* trained with --decoder-layers 1, now 2$"):
        upstream.run_training("transformer", data, tmp_path, *flags)


def test_options_without_weights_are_named(trained_once, tmp_path, said):
    data, path = trained_once("transformer")
    begin = ("--finetune-from-model", path, "--dropout", "0.3", "--max-source-positions", "99")
    upstream.run_training("transformer", data, tmp_path / "same", *begin)
    assert "its weights fit" not in said.text
    upstream.run_training("transformer", data, tmp_path / "other", *begin, "--no-scale-embedding")
    assert f"{path}: its weights fit, but it was trained with --no-scale-embedding False, now True" in said.text


def test_options_of_the_optimizer_that_a_checkpoint_replaces_are_named(trained_once, tmp_path, said):
    data, path = trained_once("transformer")
    more = ("--restore-file", path, "--lr", "0.002", "--max-epoch", "2", "--weight-decay", "0.5")
    change = ("--optimizer-overrides", "{'weight_decay': 0.5}")
    for name, flags, decay in (("saved", (), 0.0), ("given", change, 0.5)):
        said.clear()
        resumed = upstream.run_training("transformer", data, tmp_path / name, *more, *flags)
        assert load_safely(resumed)["last_optimizer_state"]["param_groups"][0]["weight_decay"] == decay
        assert ("resumes with its optimizer's weight_decay=0.0 in place of 0.5" in said.text) == (name == "saved")


def test_a_missing_option_is_named():
    with pytest.raises(MissingMandatoryValue) as raised:
        OmegaConf.create({"sentencepiece_model": "???"})["sentencepiece_model"]
    assert one_line(raised.value) == "--sentencepiece-model: must be given"


def test_only_a_criterion_of_fairseq_is_known_to_train_no_adaptive_softmax():
    """A user's own may be able to."""
    softmax = AdaptiveSoftmax(9, 4, [5], dropout=0)
    model = SimpleNamespace(decoder=SimpleNamespace(adaptive_softmax=softmax))
    cfg = convert_namespace_to_omegaconf(upstream.arguments("transformer", "--criterion", "cross_entropy"))
    task = TranslationTask(TranslationConfig(), Dictionary(), Dictionary())
    own = type("Own", (CrossEntropyCriterion,), {"__module__": "somewhere.criterions"})
    require_adaptive_loss(None, cfg, task, model, own(task, sentence_avg=False))
    with pytest.raises(ValueError, match="^--criterion cross_entropy: must be adaptive_loss"):
        require_adaptive_loss(None, cfg, task, model, CrossEntropyCriterion(task, sentence_avg=False))


@pytest.mark.parametrize(("line", "warns"), [("one two three", False), ("one x", False), ("one x y", True)])
def test_text_that_is_not_segmented_is_warned_of(line, warns, caplog):
    words = Dictionary()
    for word in ("one", "two", "three"):
        words.add_symbol(word)
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_words(line, words.encode_line(line, add_if_not_exist=False), words)
        warn_of_unknown_words("speech.wav", torch.zeros(7, 80), None)
    assert ["of 3 symbols are unknown: segment" in said for said in caplog.messages] == [True] * warns
