"""Each option of the image trainer has its effect."""

from unittest.mock import Mock

import pytest
import torch

from tests.support.image_training import ELASTIC, SIDE, loaders, trainer_of


def test_images_are_augmented_as_the_options_say(images):
    training, _ = loaders(images, "--scale", "0.5", "0.75", "--hflip", "0.25", "--reprob", "0.125")
    crop, flip, *_ = training.dataset.transform.transforms
    assert (tuple(crop.scale), flip.p, training.random_erasing.probability) == ((0.5, 0.75), 0.25, 0.125)


def test_labels_are_smoothed_as_the_option_says(images, tmp_path):
    trainer = trainer_of(images, tmp_path, "--smoothing", "0.25")
    batch, labels = next(iter(trainer.val_loader))
    expected = torch.nn.functional.cross_entropy(trainer.model(batch), labels, label_smoothing=0.25)
    torch.testing.assert_close(trainer.task(batch, labels)["loss"], expected)


@pytest.mark.parametrize("more", [["--mixed-depth"], ["--pass-loss", "0.5"]], ids=" ".join)
def test_the_loss_of_several_depths_is_trained(images, tmp_path, more):
    trainer = trainer_of(images, tmp_path, *ELASTIC[:-2], *more)
    batch, labels = next(iter(trainer.val_loader))
    outputs = trainer.model.train()(batch)
    last, *earlier = (torch.nn.functional.cross_entropy(each, labels, label_smoothing=0.1) for each in outputs)
    mean = sum(earlier) / len(earlier)
    expected = (last + mean) / 2 if more == ["--mixed-depth"] else last + 0.5 * mean
    torch.testing.assert_close(trainer.task(batch, labels)["loss"], expected)


def test_images_are_changed_by_the_given_policy(images):
    training, _ = loaders(images, "--aa", "rand-m9-mstd0.5")
    assert "RandAugment" in {type(step).__name__ for step in training.dataset.transform.transforms}


def test_images_are_changed_by_the_given_jitter(images):
    training, _ = loaders(images, "--color-jitter", "0.25")
    (jitter,) = (step for step in training.dataset.transform.transforms if type(step).__name__ == "ColorJitter")
    assert jitter.brightness == (0.75, 1.25)


def test_labels_are_mixed_as_the_options_say(images):
    training, _ = loaders(images, "--mixup", "0.8", "--cutmix", "0.5", "--smoothing", "0.25")
    collate = training.loader.collate_fn
    assert (collate.mixup_alpha, collate.cutmix_alpha, collate.label_smoothing) == (0.8, 0.5, 0.25)


def test_images_of_evaluation_are_cropped_as_the_option_says(images):
    _, evaluation = loaders(images, "--crop-pct", "0.5")
    assert evaluation.dataset.transform.transforms[0].size == 2 * SIDE


def test_the_optimiser_is_the_given_one(images, tmp_path):
    assert type(trainer_of(images, tmp_path, "--opt", "lamb").optimizer).__name__ == "Lamb"


def test_the_average_decays_as_the_option_says(images, tmp_path):
    assert trainer_of(images, tmp_path, "--model-ema-decay", "0.25").task.trainable_module_ema.decay == 0.25


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_mixed_precision_is_that_of_the_option(images, tmp_path, kind):
    trainer, seen = trainer_of(images, tmp_path, "--amp", kind), set()
    trainer.model.head.register_forward_hook(lambda *given: seen.add(given[-1].dtype))
    trainer.learn(*next(iter(trainer.train_loader)), 0, last=True)
    trainer.evaluate()
    assert seen == {getattr(torch, kind)}


def test_gradients_in_half_precision_are_clipped(images, tmp_path):
    trainer = trainer_of(images, tmp_path, "--amp", "float16", "--clip-grad", "0.25")
    trainer.scaler = Mock()
    trainer.learn(*next(iter(trainer.train_loader)), 0, last=True)
    assert trainer.scaler.call_args.kwargs["clip_grad"] == 0.25


def test_every_process_draws_its_own_numbers(images, tmp_path, monkeypatch):
    trainer, drawn = trainer_of(images, tmp_path), []
    monkeypatch.setattr(trainer, "learn", lambda *_, last: drawn.append(torch.rand(()).item()) or torch.zeros(()))
    for trainer.args.rank in (0, 1):
        trainer.train(0)
    assert len(set(drawn)) == len(drawn) == 2 * trainer.updates
