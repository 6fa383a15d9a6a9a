"""The tasks of Kausik's experiments: texts, targets, curriculum, shifted texts, and fairseq's own commands on them."""

import math
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq.data import Dictionary, MonolingualDataset, TokenBlockDataset
from fairseq.data.list_dataset import ListDataset
from fairseq.optim.sgd import SGD
from fairseq.tasks.language_modeling import LanguageModelingTask
from omegaconf import OmegaConf
from PIL import Image
from sklearn.datasets import load_digits

from fairseq_plugin.build import unpadded_dictionary
from fairseq_plugin.elastic import ElasticConfig
from fairseq_plugin.tasks.answers import AnswerCrossEntropy
from fairseq_plugin.tasks.copying import CopyingConfig, CopyingTask
from fairseq_plugin.tasks.pixel_classification import PixelClassificationConfig, PixelClassificationTask, load_images
from fairseq_plugin.tasks.shifted_language_modeling import ShiftedLanguageModelingTask, ShiftedTexts
from fairseq_repairs.checkpoints import load_safely
from tests.fairseq.test_automaton import automaton, texts
from tests.support import cli, models
from tests.support.states import same_state

HOST = [*cli.HOST, "--log-format", "json", "--no-epoch-checkpoints"]
TINY = ["--arch", "recurrent_lm", "--decoder-embed-dim", "16", "--decoder-attention-heads", "2"]
STEPS = ["--optimizer", "adam", "--lr", "0.005", "--batch-size", "16", "--seed", "7"]
ANSWERS = ["--criterion", "answer_cross_entropy", "--report-accuracy", "--required-batch-size-multiple", "1"]


def copying(**values) -> CopyingTask:
    """The task with a few texts; its own defaults otherwise."""
    few = dict(train_texts=8, valid_texts=4, seed=1)
    return CopyingTask(OmegaConf.structured(CopyingConfig(**{**few, **values})))


# Copying


@pytest.mark.parametrize("selective", [False, True])
def test_the_tokens_to_copy_are_in_the_text_and_are_the_last_targets(selective):
    task = copying(selective=selective)
    batch = texts(task, "train")
    source, target = batch["net_input"]["src_tokens"], batch["target"]
    assert source.shape == target.shape == (8, 4128)
    assert source[:, -16:].eq(15).all()
    assert source[:, :-16].lt(15).all()
    assert target[:, :-16].eq(task.answers.pad()).all()
    assert batch["ntokens"] == 8 * 16
    for text, answer in zip(source[:, :-16], target[:, -16:]):
        assert torch.equal(text[text.gt(0)], answer)  # noise is 0, what is copied 1 to 14
    first = source[:, :16].gt(0).all(dim=1)
    assert not first.any() if selective else first.all()
    assert set(target[:, -16:].flatten().tolist()) == set(range(1, 15))


@pytest.mark.parametrize("task", [copying, automaton])
def test_texts_depend_on_seed_subset_and_in_training_on_the_epoch(task):
    def drawn(split, epoch=1, **values):
        return texts(task(**values), split, epoch)["net_input"]["src_tokens"]

    assert torch.equal(drawn("train"), drawn("train"))
    assert not torch.equal(drawn("train"), drawn("train", epoch=2))
    assert not torch.equal(drawn("train"), drawn("train", seed=2))
    assert torch.equal(drawn("valid"), drawn("valid", epoch=2))
    assert not torch.equal(drawn("valid"), drawn("test"))


def test_the_curriculum_doubles_the_noise_when_the_loss_is_low_enough():
    task = copying(noise=100, start_noise=32, next_below=0.3)
    lengths, factors = [], []
    for epoch, loss in enumerate((2.0, 0.2, 0.31, 0.1, 0.05, 0.01), start=1):
        task.begin_epoch(epoch, None)
        lengths.append(texts(task, "train", epoch)["target"].size(1))
        factors.append(task.rate_factor())
        task.begin_valid_epoch(epoch, None)
        assert texts(task, "valid")["target"].size(1) == lengths[-1]
        assert texts(task, "test")["target"].size(1) == 132
        stats = {"loss": loss / math.log(2)}
        task.post_validate(None, stats, None)
        assert stats["noise"] == lengths[-1] - 32
    assert lengths == [64, 64, 96, 96, 132, 132]
    warming_up = [1 - length * 0.5 / 132 for length in lengths[:4]]
    falling = [(1 - math.exp(-loss)) / 2 for loss in (0.1, 0.05)]
    assert factors == pytest.approx(warming_up + falling)


@pytest.mark.parametrize("noise", [8, 64])
def test_without_a_curriculum_a_checkpoint_does_not_set_the_noise(noise):
    trained, later = copying(noise=16), copying(noise=noise)
    trained.begin_valid_epoch(1, None)
    trained.post_validate(None, {"loss": 0.0}, None)
    later.load_state_dict(trained.state_dict())
    later.begin_epoch(2, None)
    assert {later.noise(split, 2) for split in ("train", "valid", "test")} == {noise}


def test_the_first_validation_subset_sets_the_curriculum():
    plain = copying(noise=8)
    assert (plain.noise("train", 2), plain.rate_factor()) == (8, 1)
    task = copying(noise=100, start_noise=32)
    task.begin_epoch(1, None)
    for losses, noise in (((2.0, 0.0), 32), ((0.0, 2.0), 64)):  # two validations in an epoch
        task.begin_valid_epoch(1, None)
        for loss in losses:
            task.post_validate(None, {"loss": loss}, None)
        assert task.noise("train", 2) == noise


def test_the_factor_is_for_one_update_and_leaves_the_schedulers_rate():
    task, weight = copying(noise=100, start_noise=32), torch.nn.Parameter(torch.zeros(1))
    task.begin_epoch(1, None)
    optimizer = SGD(Namespace(lr=[0.5], momentum=0.0, weight_decay=0.0), [weight])
    weight.grad = torch.ones(1)
    for update in (1, 2):
        task.optimizer_step(optimizer, None, update)
        assert weight.item() == pytest.approx(-0.5 * update * task.rate_factor())
        assert optimizer.get_lr() == 0.5
    assert task.rate_factor() < 1


@pytest.mark.parametrize(
    ("task", "values", "message"),
    [
        (copying, dict(noise=0), "--noise=0: must be >= 1"),
        (copying, dict(symbols=3), "--symbols=3: must be >= 4"),
        (copying, dict(train_texts=0), "--train-texts=0: must be >= 1"),
        (copying, dict(start_noise=64, noise=32), "--start-noise=64: must be >= 1 and <= --noise=32"),
        (copying, dict(next_below=0.0), "--next-below=0.0: must be > 0"),
        (automaton, dict(rule=256), "--rule=256: must be from 0 to 255"),
        (automaton, dict(cells=0), "--cells=0: must be >= 1"),
        (automaton, dict(steps=0), "--steps=0: must be >= 1"),
        (automaton, dict(train_texts=0), "--train-texts=0: must be >= 1"),
        (automaton, dict(valid_texts=0), "--valid-texts=0: must be >= 1"),
    ],
)
def test_bad_values_are_rejected_by_name(task, values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        task(**values)


# Pixels


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """scikit-learn's handwritten digits, 8 x 8, three classes, as colour pictures in folders."""
    folder = tmp_path_factory.mktemp("images")
    digits = load_digits(n_class=3)
    for index, (image, digit) in enumerate(zip(digits.images[:120], digits.target)):
        place = folder / ("test" if index % 4 == 0 else "train") / f"digit{digit}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * image).astype(np.uint8)).convert("RGB").save(place / f"{index}.png")
    return folder


def pixels(folder) -> PixelClassificationTask:
    return PixelClassificationTask(OmegaConf.structured(PixelClassificationConfig(data=str(folder))))


def test_pixels_are_grey_tokens_and_the_class_stands_at_the_last(images):
    task = pixels(images)
    task.load_dataset("train")
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    assert (len(task.dataset("train")), len(dataset)) == (90, 30)
    batch = dataset.collater([dataset[i] for i in range(len(dataset))])
    assert batch["net_input"]["src_tokens"].shape == (30, 64)
    assert batch["ntokens"] == 30
    assert batch["target"][:, :-1].eq(task.target_dictionary.pad()).all()
    assert set(batch["target"][:, -1].tolist()) == {0, 1, 2}
    first = sorted((images / "test" / "digit0").iterdir())[0]
    grey = torch.from_numpy(np.array(Image.open(first).convert("L"), dtype=np.int64)).flatten()
    assert torch.equal(batch["net_input"]["src_tokens"][0], grey)


@pytest.mark.skipif(cli.is_official(), reason="fairseq 0.12.2 gives every epoch the same seed")
def test_every_epoch_mixes_the_images_anew(images):
    """A run that resumes in an epoch reads the batches of one that has read all epochs."""

    def batches(task: PixelClassificationTask, epoch: int) -> list[list[int]]:
        found = task.get_batch_iterator(task.dataset("train"), max_sentences=8, seed=1, epoch=epoch)
        return sorted(sorted(batch["id"].tolist()) for batch in found.next_epoch_itr())

    straight, later = pixels(images), pixels(images)
    for task in (straight, later):
        task.load_dataset("train")
    first, second = (batches(straight, epoch) for epoch in (1, 2))
    assert first != second == batches(later, 2)


def test_folders_that_hold_no_such_images_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=re.escape(f"data={tmp_path}: must hold cifar-10-batches-py, or images in")):
        pixels(tmp_path)
    for split, kind in (("train", "a"), ("train", "b"), ("test", "a")):
        (tmp_path / split / kind).mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / split / kind / "0.png")
    task = pixels(tmp_path)
    with pytest.raises(ValueError, match="the classes in valid must be those in train"):
        task.load_dataset("valid")
    Image.new("L", (4, 5)).save(tmp_path / "train" / "b" / "0.png")
    task.load_dataset("train")
    with pytest.raises(ValueError, match=re.escape("an image of (4, 5): must be (4, 4), as the first one")):
        task.dataset("train")[1]


def test_greys_of_16_bits_are_read_as_the_nearest_of_8(tmp_path):
    """PIL's conversion makes all above 255 white."""
    greys = np.array([[200, 128], [65534, 385]], dtype=np.uint16)
    for split in ("train", "test"):
        (tmp_path / split / "a").mkdir(parents=True)
    Image.fromarray(greys).save(tmp_path / "train" / "a" / "0.png")
    (tmp_path / "train" / "a" / "1.pgm").write_bytes(b"P5 2 2 65535\n" + greys.astype(">u2").tobytes())
    Image.fromarray(greys.astype(np.int32)).save(tmp_path / "test" / "a" / "0.tiff")
    task = pixels(tmp_path)
    for split in ("train", "valid"):
        task.load_dataset(split)
    for index in (0, 1):
        assert task.dataset("train")[index][1].tolist() == [1, 0, 255, 1]
    with pytest.raises(ValueError, match=r"0.tiff: has greys of 32 bits: must have 8 or 16"):
        task.dataset("valid")[0]


def test_a_folder_with_both_validates_on_val_and_tests_on_test(tmp_path):
    for level, split in enumerate(("train", "val", "test")):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("L", (2, 1), level).save(tmp_path / split / "a" / "0.png")
    task = pixels(tmp_path)
    for level, split in enumerate(("train", "valid", "test")):
        task.load_dataset(split)
        assert task.dataset(split)[0][1].tolist() == [level, level]


def test_classes_cannot_share_the_matrix_of_pixels(images):
    with pytest.raises(ValueError, match="^--arch=recurrent_lm: must be recurrent_lm with --no-share-decoder-in"):
        models.build("recurrent_lm", *TINY[2:], on=pixels(images))


def test_every_grey_level_is_seen_whatever_the_number_of_classes():
    two, grey = unpadded_dictionary(2), unpadded_dictionary(256)
    assert (len(two), two.pad()) == (2, 2)
    decoder = models.tiny(
        "recurrent_lm", *TINY[2:], "--no-share-decoder-input-output-embed", on=pixel_task(two)
    ).decoder
    assert decoder._padding(torch.tensor([[2, 256, 2]]), 0, None).tolist() == [[False, True, False]]
    assert grey.pad() == 256
    with pytest.raises(ValueError, match="--adaptive-softmax-cutoff=1: must be 'none', as this task's symbols have no"):
        models.on_meta(
            "cycle_lm", "--adaptive-input-cutoff", "none", "--adaptive-softmax-cutoff", "1", on=pixel_task(two)
        )


def pixel_task(classes) -> PixelClassificationTask:
    task = PixelClassificationTask.__new__(PixelClassificationTask)
    task.symbols, task.answers, task.args = unpadded_dictionary(256), classes, Namespace(tokens_per_sample=1024)
    return task


def test_the_loss_and_the_accuracy_are_those_of_the_answers():
    task = copying(noise=8)
    batch = texts(task, "train")
    model = models.tiny("recurrent_lm", on=task).float()
    options = ElasticConfig(sentence_avg=False, report_accuracy=True)
    loss, size, log = AnswerCrossEntropy(task, options)(model, batch)
    logits, target = model(batch["net_input"]["src_tokens"])[0], batch["target"]
    asked = target.ne(16)
    assert size == log["total"] == asked.sum() == 8 * 16
    torch.testing.assert_close(loss, F.cross_entropy(logits[asked], target[asked], reduction="sum"))
    assert log["n_correct"] == logits.argmax(-1)[asked].eq(target[asked]).sum()
    asked[:, :-10] = False
    options = ElasticConfig(sentence_avg=False, ignore_prefix_size=target.size(1) - 10)
    loss, *_ = AnswerCrossEntropy(task, options)(model, batch)
    torch.testing.assert_close(loss, F.cross_entropy(logits[asked], target[asked], reduction="sum"))


# Shifted texts


def shifted(length: int, seed: int = 1) -> tuple[ShiftedTexts, torch.Tensor]:
    """A corpus of lines of several lengths, and its tokens in a row."""
    lines = [torch.arange(first, first + size) for first, size in ((10, 7), (17, 1), (18, 30), (48, 12), (60, 3))]
    sizes = np.array([len(line) for line in lines])
    lines = ListDataset(lines, sizes)
    blocks = TokenBlockDataset(lines, sizes, length, pad=1, eos=2, break_mode="none", include_targets=True)
    return ShiftedTexts(
        MonolingualDataset(blocks, blocks.sizes, Dictionary(), targets=["future"]), length, seed
    ), torch.arange(10, 63)


@pytest.mark.parametrize("length", [1, 5, 8])
def test_the_texts_of_an_epoch_are_consecutive_and_begin_anywhere(length):
    dataset, corpus = shifted(length)
    starts = []
    for epoch in range(1, 60):
        dataset.set_epoch(epoch)
        rows = [dataset[i] for i in range(len(dataset))]
        read = torch.cat([row["target"] for row in rows])
        starts.append(int(read[0]) - 10)
        assert torch.equal(read, corpus[starts[-1] : starts[-1] + len(read)])
        assert all(len(row["source"]) == len(row["target"]) == length for row in rows)
        assert all(torch.equal(row["source"][1:], row["target"][:-1]) for row in rows)
        assert len(corpus) - len(read) < 2 * length
        assert sorted(dataset.ordered_indices()) == list(range(len(dataset)))
    assert set(starts) == set(range(length))
    dataset.set_epoch(7)
    assert int(dataset[0]["target"][0]) - 10 == starts[6]


def test_the_seed_is_that_of_the_shifts():
    def starts(seed: int) -> list[int]:
        dataset, _ = shifted(8, seed)
        return [(dataset.set_epoch(epoch), int(dataset[0]["target"][0]))[1] for epoch in range(1, 9)]

    assert starts(1) == starts(1) != starts(2)


def test_a_corpus_that_holds_no_two_texts_is_rejected():
    with pytest.raises(ValueError, match="--tokens-per-sample=28: must be <= half of the 53 tokens"):
        shifted(28)
    assert len(shifted(27)[0]) == 1


# fairseq's commands


def resumed(folder, *command) -> tuple[dict, dict, str]:
    """What is saved after three epochs, in one run and in two; and the first run's log."""
    log = cli.run("fairseq-train", *command, "--max-epoch", "3", "--save-dir", folder / "once")
    for epochs in ("1", "3"):
        cli.run("fairseq-train", *command, "--max-epoch", epochs, "--save-dir", folder / "twice")
    return *(load_safely(folder / name / "checkpoint_last.pt") for name in ("once", "twice")), log


@pytest.mark.slow
def test_copying_resumes_within_its_curriculum(tmp_path):
    noise = ["--noise", "32", "--start-noise", "4", "--memorise", "4", "--next-below", "10", "--position", "learned"]
    few = ["--train-texts", "32", "--valid-texts", "16"]
    command = [*HOST, "--task", "copying", *TINY, *STEPS, *ANSWERS, *noise, *few, "--update-epoch-batch-itr", "True"]
    once, twice, log = resumed(tmp_path, *command)
    assert [line["valid_noise"] for line in cli.logged(log, "valid")] == [4, 8, 16]
    assert {epoch: noise for epoch, (noise, _) in once["task_state"]["course"].items()} == {1: 4, 2: 8, 3: 16, 4: 32}
    assert once["task_state"] == twice["task_state"]
    assert same_state(once["model"], twice["model"])
    checkpoint = tmp_path / "once" / "checkpoint_last.pt"
    test = cli.run("fairseq-validate", *HOST[:3], "--task", "copying", "--path", checkpoint, "--valid-subset", "test",
                   "--batch-size", "16")  # fmt: skip
    assert re.search(r"accuracy \d", test)


@pytest.mark.slow
def test_pixels_are_learned_with_drawn_windows_and_resumed(images, tmp_path):
    model = ["--no-share-decoder-input-output-embed", "--position", "learned"]
    model += ["--window", "8", "--window-range", "4,12"]
    command = [images, *HOST, "--task", "pixel_classification", *TINY, *model, *STEPS, *ANSWERS]
    once, twice, log = resumed(tmp_path, *command, "--update-epoch-batch-itr", "True")
    losses = [line["train_loss"] for line in cli.logged(log, "train")]
    assert losses[-1] < losses[0]
    assert "valid_accuracy" in cli.logged(log, "valid")[0]
    assert same_state(once["model"], twice["model"])


@pytest.mark.slow
def test_shifted_texts_are_resumed(german, tmp_path):
    command = [german.data, *HOST, "--task", "shifted_language_modeling", "--tokens-per-sample", "32", *TINY, *STEPS]
    once, twice, _ = resumed(tmp_path, *command, "--update-epoch-batch-itr", "True")
    assert same_state(once["model"], twice["model"])


def test_of_cifar_only_the_training_images_are_trained_on(tmp_path, monkeypatch):
    (tmp_path / "cifar-10-batches-py").mkdir()
    monkeypatch.setattr("torchvision.datasets.CIFAR10", lambda folder, train: train)
    assert [load_images(str(tmp_path), split) for split in ("train", "valid", "test")] == [True, False, False]


def test_only_training_texts_are_shifted(monkeypatch):
    task = ShiftedLanguageModelingTask.__new__(ShiftedLanguageModelingTask)
    task.args, task.datasets, plain = Namespace(tokens_per_sample=8, seed=1), {}, shifted(8)[0].dataset
    monkeypatch.setattr(
        LanguageModelingTask, "load_dataset", lambda self, split, *_, **__: self.datasets.update({split: plain})
    )
    for split in ("train", "valid"):
        task.load_dataset(split)
    assert [type(texts) for texts in task.datasets.values()] == [ShiftedTexts, MonolingualDataset]


def test_lines_are_not_shifted():
    with pytest.raises(ValueError, match="--sample-break-mode=eos: must be none, because only texts of equal length"):
        ShiftedLanguageModelingTask.setup_task(Namespace(sample_break_mode="eos"))
