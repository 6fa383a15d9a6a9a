"""Admin in fairseq: profiling, files of omegas, and every way of training."""

import math
import re
from pathlib import Path
from unittest.mock import Mock

import pytest
import results_csv
import torch
from logs import curve

from fairseq_plugin.elastic import at_depths
from fairseq_repairs.checkpoints import load_safely
from recurrence.papers import admin
from tests.support import cli, models
from tests.support.recipes import recipe
from tests.support.states import same_state

ADMIN = ("--init", "admin")


def fresh(arch: str, *flags: str, seed: int = 0) -> torch.nn.Module:
    """A tiny model with Admin as training finds it, its other parameters moved."""
    model = models.tiny(arch, *ADMIN, *flags, seed=seed)
    with torch.no_grad():
        for module in admin.admins(model):
            module.weight.fill_(1)
    return model


def sums(model: torch.nn.Module, inputs: tuple) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """What each residual sum of each stack adds, in the order of execution: stream and branch."""
    found, hooks = [[], []], []
    for seen, loop in zip(found, models.loops(model)):
        for module in admin.admins(loop):
            hooks.append(module.register_forward_hook(lambda _, values, __, seen=seen: seen.append(values)))
    with torch.no_grad():
        model(*inputs)
    for hook in hooks:
        hook.remove()
    return found


# What is profiled


@models.every_translation_model
def test_each_omega_is_the_spread_of_the_sum_before_it(arch):
    model, inputs = fresh(arch, "--dropout", "0", "--activation-dropout", "0"), models.batch()
    model.train()(*inputs)
    model.eval()
    for loop, seen in zip(models.loops(model), sums(model, inputs)):
        assert not [key for key in loop.blocks.state_dict() if "residuals" in key]  # the vectors are the passes' own
        assert len({own.residuals[0].weight.data_ptr() for own in loop.own}) == loop.passes
        omegas = admin.read([loop]).tolist()
        assert len(omegas) == len(seen) > 1
        assert omegas[0] == 1
        for omega, following, (x, y) in zip(omegas, omegas[1:], seen):
            variance = (omega * x).var(correction=0) + y.var(correction=0)
            assert following == pytest.approx(variance.item() ** 0.5, rel=1e-6)


@pytest.mark.parametrize("passes", [2, 8])
def test_the_full_depth_is_profiled_whatever_the_first_update_draws(passes):
    sizes = [f"--{side}-{name}" for side in models.SIDES for name in ("layers=8", "unique-layers=2")]
    plain, drawing, inputs = fresh("cycle", *sizes), fresh("cycle", *sizes), models.batch()
    with at_depths(drawing, {"encoder": passes, "decoder": passes}):
        for model in (plain, drawing):
            torch.manual_seed(0)
            model.train()(*inputs)
        assert drawing.decoder.passes == passes
    torch.testing.assert_close(admin.read(models.loops(drawing)), admin.read(models.loops(plain)))


@models.every_translation_model
def test_training_profiles_once_and_is_otherwise_the_same(arch):
    """The first pass of training profiles with its own dropout; evaluation does not, nor does anything after it."""
    model, inputs = fresh(arch, "--dropout", "0.3"), models.batch()
    model(*inputs)
    assert not model.profiled
    model.train()
    loss, gradients = models.loss_and_gradients(model, inputs, seed=3)
    profile = admin.read(models.loops(model))
    assert model.profiled
    assert profile.ne(1).sum() == len(profile) - 2
    assert same_state(models.loss_and_gradients(model, inputs, seed=3), (loss, gradients))
    model(*models.batch((2, 3), (3, 2)))
    assert torch.equal(admin.read(models.loops(model)), profile)


def test_after_an_error_the_next_batch_is_profiled():
    """fairseq goes on after a batch for which there is too little memory."""
    plain, failing, inputs = fresh("cycle"), fresh("cycle").train(), models.batch()
    failure = failing.decoder.register_forward_pre_hook(Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        failing(*inputs)
    assert not failing.profiled
    failure.remove()
    for model in (plain, failing):
        torch.manual_seed(0)
        model.train()(*inputs)
    assert failing.profiled
    torch.testing.assert_close(admin.read(models.loops(failing)), admin.read(models.loops(plain)))


def test_casts_of_the_profiling_run_are_not_those_of_training():
    """Autocast keeps casts of weights; those that were made without gradients would leave the weights without any."""
    model, inputs = fresh("cycle_rev").float().train(), models.batch()
    with torch.autocast("cpu", torch.bfloat16):
        _, gradients = models.loss_and_gradients(model, inputs)
    assert model.profiled
    assert gradients.keys() == dict(model.named_parameters()).keys()


# Files

SCALARS = [1.0, 1.25, 1.5, 2.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
TWO_LAYERS = ("--encoder-layers", "2", "--decoder-layers", "2")


@pytest.mark.parametrize("numbered", [False, True], ids=["numbers", "the published code's lines"])
def test_a_profile_from_a_file(numbered, tmp_path):
    path, places = tmp_path / "profile.ratio.init", [1, 2, 3, 4, 1, 2, 3, 4, 5, 6]
    path.write_text(
        "".join(f"{place} {omega}\n" if numbered else f"{omega}\n" for place, omega in zip(places, SCALARS))
    )
    args = models.options("ringformer_tiny", *ADMIN, *TWO_LAYERS, "--admin-profile", str(path))
    model = models.task().build_model(args)
    assert model.profiled
    torch.testing.assert_close(admin.read(models.loops(model)), torch.tensor(SCALARS))
    model.train()(*models.batch())
    torch.testing.assert_close(admin.read(models.loops(model)), torch.tensor(SCALARS))
    path.unlink()
    again = models.task().build_model(args)  # as when a checkpoint is loaded
    torch.testing.assert_close(admin.read(models.loops(again)), torch.tensor(SCALARS))
    args.decoder_layers = 1  # and at another depth
    shallow = models.task().build_model(args)
    shallow.load_state_dict(model.state_dict())
    assert shallow.profiled
    torch.testing.assert_close(admin.read(models.loops(shallow)), torch.tensor(SCALARS)[:-3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"cannot be read \(.*not found"),
        (b"\xff\xfe\x00", r"cannot be read \("),
        (b"1\n" * 9, "has 9 sublayers, but the encoder has 4 and the decoder 6"),
        (b"1\none\n", r"cannot be read \(.* 'one' "),
        (b"{1: 2}\n", r"cannot be read \(.* '{1:' "),
        (b"1 -1\n", "each line must end with a positive number"),
        (b"1 nan\n", "each line must end"),
    ],
)
def test_a_file_that_is_no_profile_is_rejected(content, message, tmp_path):
    path = tmp_path / "profile"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^--admin-profile={path}: {message}"):
        models.on_meta("ringformer_tiny", *ADMIN, *TWO_LAYERS, "--admin-profile", str(path))


@pytest.mark.parametrize("side", models.SIDES)
@models.every_translation_model
def test_pre_norm_is_rejected(arch, side):
    with pytest.raises(ValueError, match=f"^--init=admin: needs post-norm, and .* --{side}-normalize-before"):
        models.on_meta(arch, *ADMIN, f"--{side}-normalize-before")


# Through the command line

TRAINING = (*ADMIN, "--batch-size", "8", "--max-update", "6", "--save-interval-updates", "3", "--no-epoch-checkpoints")
PROFILED = r"Admin: profiled 10 sublayers, omegas from 1.000 to (\d\.\d+)"


def offsets(state: dict) -> dict[str, torch.Tensor]:
    """What a checkpoint keeps of the profile."""
    found = {key: tensor.float() for key, tensor in state.items() if key.endswith(".offset")}
    assert len(found) == 10
    assert state["profiled"].item() == pytest.approx(1, abs=0.01)
    return found


class Run:
    """A training of six updates with two layers a side."""

    def __init__(self, corpus, folder: Path, *flags):
        self.folder, self.log = folder, cli.train(corpus.data, folder, *TRAINING, *flags)

    def state(self, name: str = "checkpoint_last") -> dict:
        return load_safely(self.folder / f"{name}.pt")


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory) -> Run:
    """Without dropout, in float32, two batches an update."""
    return Run(corpus, tmp_path_factory.mktemp("straight"), *cli.WITHOUT_DROPOUT, "--update-freq", "2")


@pytest.mark.slow
def test_one_command_profiles_and_trains(straight):
    assert len(re.findall(PROFILED, straight.log)) == 1
    first, last = (offsets(straight.state(name)["model"]) for name in ("checkpoint_1_3", "checkpoint_last"))
    assert same_state(first, last)
    assert sum(value != 0 for value in first.values()) == 8
    weights = [tensor for key, tensor in straight.state()["model"].items() if re.search(r"residuals\.\d\.weight", key)]
    assert len(weights) == 10
    assert all(0 < (weight - 1).abs().max() < 0.1 for weight in weights)


@pytest.mark.slow
def test_a_resumed_run_does_not_profile_again(straight, corpus, tmp_path):
    flags = (*cli.WITHOUT_DROPOUT, "--update-freq", "2", "--restore-file", straight.folder / "checkpoint_1_3.pt")
    restored = Run(corpus, tmp_path, *flags)
    assert "Admin: profiled" not in restored.log
    assert cli.logged(restored.log)[0]["num_updates"] == 4
    assert same_state(restored.state()["model"], straight.state()["model"])


@pytest.mark.slow
def test_bf16_averages_and_recomputed_passes_keep_the_profile(straight, corpus, tmp_path):
    """Of the master copy, of the moving average and of the passes that run again, none undoes it."""
    flags = ("--bf16", "--store-ema", "--ema-fp32", "--checkpoint-activations", "--update-freq", "2")
    run = Run(corpus, tmp_path, *cli.WITHOUT_DROPOUT, *flags)
    assert len(re.findall(PROFILED, run.log)) == 1
    expected, got = offsets(straight.state()["model"]), offsets(run.state()["model"])
    average = offsets(run.state()["extra_state"]["ema"])
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=0.02, atol=0.02)
        torch.testing.assert_close(average[key], got[key], rtol=0.01, atol=0.001)
    one, other = ([line["loss"] for line in cli.logged(log)] for log in (straight.log, run.log))
    assert other == pytest.approx(one, rel=0.02)


@pytest.mark.slow
def test_two_workers_train_as_one_with_both_batches(straight, corpus, tmp_path):
    """Both take the profile of the first one's batch."""
    flags = (*TRAINING, *cli.WITHOUT_DROPOUT, *cli.BACKEND)
    log = cli.torchrun(2, *cli.train_command(corpus.data, tmp_path, *flags))
    losses = [{line["num_updates"]: line["loss"] for line in cli.logged(text)} for text in (straight.log, log)]
    assert losses[1] == pytest.approx(losses[0], abs=0.0011)
    state = load_safely(tmp_path / "checkpoint_last.pt")["model"]
    torch.testing.assert_close(offsets(state), offsets(straight.state()["model"]), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_the_recipe_records_its_last_loss(tmp_path):
    flags = ("--encoder-layers", "6", "--decoder-layers", "6", "--max-update", "6")
    recipe("takase/admin.sh", "admin", *flags, SCALE="smoke", OUT=str(tmp_path), DATA_ROOT="")
    (found,) = results_csv.read(tmp_path / "takase" / "results.csv")
    assert (found["row"], found["metric"], found["updates"]) == ("admin", "loss, nats", "6")
    log = tmp_path / "takase" / "admin" / "smoke" / "admin" / "s1" / "train.log"
    losses = dict(curve(log, "updates", "valid_nll_loss"))
    assert float(found["value"]) == pytest.approx(math.log(2) * losses[6], abs=1e-4)
