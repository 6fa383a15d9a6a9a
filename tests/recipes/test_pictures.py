"""The commands that draw the papers' figures, on small checkpoints of fairseq's and timm's own trainers."""

import argparse
import csv
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import accuracy
import attention_distance
import checkpoints
import cka
import coefficients
import curves
import landscape
import lead
import matplotlib.image
import pytest
import responses
import rows
import sizes
import torch
from torch import nn

from recurrence.analysis.record import recorded_states
from tests.support import cli
from tests.support.image_training import flags
from tests.support.recipes import RECIPES
from timm_plugin import train as train_image

VIT = ["patch_size=4", "embed_dim=16", "depth=3", "num_heads=2"]
PYRAMID = ["embed_dim=8", "depths=(1,1,1)", "num_heads=(1,2,2)"]
RUNS = {"ringformer_vit": (16, VIT), "owf_vit": (16, VIT), "sret_tl": (32, PYRAMID)}


@pytest.fixture(scope="module")
def runs(images, tmp_path_factory) -> Path:
    """Folders of small models that train_image.py has trained for two epochs, MODEL/s1."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for name, (side, kwargs) in RUNS.items():
            shape = ["--model", name, "--model-kwargs", *kwargs, "--img-size", side, "--epochs", 2, "--lr", 0.01]
            patch.setattr(sys, "argv", ["train_image.py", *flags(images, folder / name / "s1", *shape)])
            train_image.main()
    return folder


def checkpoint(runs: Path, name: str) -> str:
    return f"{name}={runs / name / 's1' / 'last.pth.tar'}"


def drawn(tool: ModuleType, picture: Path, *words: object) -> list[dict[str, str]]:
    """Draws a picture and returns the numbers beside it, after a look at whether it is one."""
    tool.main([*map(str, words), "--output", str(picture)])
    assert picture.stat().st_size > 5000
    if picture.suffix == ".png":
        pixels = matplotlib.image.imread(picture)
        assert pixels.shape[1] == 1300
        assert pixels.std() > 0.05
    with picture.with_suffix(".csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_image_models_are_loaded_as_they_were_tested(runs):
    run = checkpoints.ImageRun(runs / "sret_tl" / "s1" / "last.pth.tar")
    ((images, classes),) = run.images(100, 100)
    assert (len(images), sorted(set(classes.tolist()))) == (15, [0, 1, 2])
    with torch.no_grad():
        found = 100 * (run.model(images).argmax(1) == classes).double().mean()
    *_, last = csv.DictReader((runs / "sret_tl" / "s1" / "summary.csv").open())
    assert float(found) == pytest.approx(float(last["eval_top1"]), abs=1e-3)
    training = run.images(100, 100, training=True)
    assert len(training.dataset) == 48
    few = [classes.tolist() for _, classes in run.images(3, 1)]
    assert few == [[0], [1], [2]], "samples are of all classes"


def test_cka_of_translation_models(corpus, trained, tmp_path, capsys):
    models = [f"{epoch}={trained.folder / f'checkpoint{epoch}.pt'}" for epoch in (1, 3)]
    sizes = ("--samples", "20", "--batch", "8")
    found, _ = (drawn(cka, tmp_path / f"{number}.png", *models, *sizes) for number in range(2))
    assert (tmp_path / "0.png").read_bytes() == (tmp_path / "1.png").read_bytes(), "the same numbers, the same file"
    assert [row["side"] for row in found] == ["encoder"] * 4 + ["decoder"] * 4
    assert all(0 < float(row["linear CKA"]) <= 1 for row in found)
    same = [float(row["linear CKA"]) for row in found[:4] if row["layer of 1"] == row["layer of 3"]]
    printed = capsys.readouterr().out.splitlines()[:2]
    assert [line.split(":")[0] for line in printed] == ["encoder", "decoder"]
    mean, low, high = map(float, re.findall(r"0\.\d+|1\.000", printed[0]))
    assert mean == pytest.approx(sum(same) / 2, abs=1e-3)
    assert low <= mean <= high
    run = checkpoints.TextRun(trained.folder / "checkpoint3.pt", str(corpus.data))
    pad = run.task.target_dictionary.pad()
    for inputs, layers in zip(run.batches(20, 8), cka.text_layers(run, 20, 8, "valid"), strict=True):
        assert {len(layer) for layer in layers["encoder"]} == {int(inputs["src_tokens"].ne(pad).sum())}
        assert {len(layer) for layer in layers["decoder"]} == {int(inputs["prev_output_tokens"].ne(pad).sum())}
        with recorded_states(run.model) as states, torch.no_grad():
            run.model(**inputs)
        kept = states["decoder.loop"][1][inputs["prev_output_tokens"].ne(pad)]
        torch.testing.assert_close(layers["decoder"][1], kept)


def test_attention_distances(runs, tmp_path):
    names = ("ringformer_vit", "owf_vit")
    found = drawn(attention_distance, tmp_path / "distance.png", *(checkpoint(runs, name) for name in names))
    assert [sum(row["model"] == name for row in found) for name in names] == [6, 6]
    assert all(0 < float(row["mean attention distance, pixels"]) < 23 for row in found)
    (passes, uniform) = attention_distance.distances(runs / "owf_vit" / "s1" / "last.pth.tar", 4, 2, None)
    assert [len(heads) for heads in passes] == [2, 2, 2]
    grid = torch.cartesian_prod(*2 * [torch.arange(4.0)])
    assert uniform == pytest.approx(3 * [4 * float(torch.cdist(grid, grid).mean())], abs=1e-3)


def test_response_maps(runs, tmp_path):
    last = runs / "sret_tl" / "s1" / "last.pth.tar"
    found = drawn(responses, tmp_path / "responses.png", last)
    assert len(found) == 2 * 2 * (16 + 4 + 1)
    assert {row["stage"] for row in found} == {"1", "2", "3"}
    run = checkpoints.ImageRun(last)
    ((images, _),) = run.images(2, 2)
    features = run.model.forward_intermediates(images, intermediates_only=True)
    for maps, feature in zip(responses.responses(run, images), features, strict=True):
        torch.testing.assert_close(maps[-1], feature.square().mean(dim=1).sqrt())


def test_landscapes(runs, tmp_path, capsys):
    words = [checkpoint(runs, "sret_tl"), *["--steps", "3", "--reach", "0.5", "--samples", "12"]]
    found = drawn(landscape, tmp_path / "landscape.svg", *words)
    assert [value for name, value in found[4].items() if "step" in name] == ["0", "0"]
    losses = [float(row["loss, nats"]) for row in found]
    assert len(set(losses)) == 9
    run = checkpoints.ImageRun(runs / "sret_tl" / "s1" / "last.pth.tar")
    ((images, classes),) = run.images(12, 12, training=True)
    with torch.no_grad():
        assert losses[4] == pytest.approx(float(nn.functional.cross_entropy(run.model(images), classes)), rel=1e-4)
    second = [(low - 2 * losses[4] + high) / 0.25 for low, high in (losses[1:8:6], losses[3:6:2])]
    mean, spread = map(float, capsys.readouterr().out.removeprefix("sret_tl: curvature ").split(" +- "))
    assert mean == pytest.approx(sum(second) / 2, rel=0.01, abs=1e-3)
    assert spread == pytest.approx(abs(second[0] - second[1]) / 2**0.5, rel=0.01, abs=1e-3)


def test_directions_of_a_landscape_are_on_the_device_of_the_model(runs, monkeypatch):
    def surface(model, loss, directions, steps):
        assert {weight.device.type for weight in model.parameters()} == {"meta"}
        assert {part.device.type for direction in directions for part in direction.values()} == {"meta"}

    monkeypatch.setattr(landscape, "device", lambda: torch.device("meta"))  # as little the processor as a GPU
    monkeypatch.setattr(landscape, "loss_surface", surface)
    sizes = argparse.Namespace(data=None, samples=4, batch=4)
    landscape.surface(runs / "sret_tl" / "s1" / "last.pth.tar", torch.zeros(3), sizes)


def test_coefficients_of_the_summary_are_those_of_the_checkpoint(runs, tmp_path):
    run = runs / "sret_tl" / "s1"
    logged = coefficients.evolution(run / "summary.csv")
    assert len(logged) == 6
    state = torch.load(run / "last.pth.tar", weights_only=False)["state_dict"]
    for place, sublayer in coefficients.SUBLAYERS.items():
        for role in coefficients.LINES:
            stored = float(state[f"stages.0.loop.{place}.{role}"])
            assert logged[sublayer, role] == {1: logged[sublayer, role][1], 2: pytest.approx(stored)}
    assert any(abs(line[2] - 1) > 1e-3 for line in logged.values()), "they have been trained"
    assert len(drawn(coefficients, tmp_path / "first.png", run / "summary.csv")) == 2 * 6


def test_accuracy_over_costs(tmp_path, monkeypatch):
    run = dict(table="SReT 5", row="t", scale="paper", metric="top-1 %", value="75.5")
    monkeypatch.setattr(accuracy.render, "read", lambda path: [run])
    found = {row["row"]: row for row in drawn(accuracy, tmp_path / "accuracy.png")}
    assert len(found) == 27
    assert list(found["t"].values()) == ["t", "SReT", "4.8", "1.1", "76", "75.5"]
    assert list(found["deit_distilled"].values()) == ["deit_distilled", "others, distilled", "5.7", "1.3", "74.5", ""]


def test_wrong_words_over_stored_bytes(tmp_path, monkeypatch):
    run = dict(table="pronunciation", row="narrow", scale="small", metric="wrong words %", params="500000")
    small = [run | dict(row="eight_bits", params="", value="31")]
    small += [small[0] | dict(metric="megabytes", value="0.7")]
    recorded = [run | {"value": value} for value in ("30", "32", "37")] + small
    monkeypatch.setattr(sizes.render, "read", lambda path: recorded)
    found = drawn(sizes, tmp_path / "sizes.svg")
    assert [list(row.values()) for row in found] == [
        ["narrow", "a layer for each pass", "2", "33", "30", "37", "3"],
        ["eight_bits", "RingFormer, 4 + 4 passes, in eight bits", "0.7", "31", "31", "31", "1"],
    ]


def test_every_row_of_one_training_is_in_the_picture_of_sizes():
    table = rows.read(RECIPES / "pronounce").tables["train"]
    # On other words, for more updates, or at another rate.
    words = {"stress", *(row for row in table.runs if "tenth" in row)}
    trained = {row for row in table.runs if row.endswith(("longer", "_time", "_tuned"))}
    assert {*sum(sizes.KINDS.values(), [])} == table.runs.keys() - words - trained


def test_a_lead_is_taken_at_the_same_share_of_the_updates(tmp_path, rejected):
    def log(name: str, losses: dict[int, float]) -> str:
        lines = [json.dumps({"valid_num_updates": at, "valid_nll_loss": loss}) for at, loss in losses.items()]
        path = tmp_path / f"{name}.log"
        path.write_text("".join(f"now | INFO | valid | {line}\n" for line in lines))
        return f"{name[:-1]}={path}"

    ours = [log(f"loop{seed}", {50: 4.0, 100: 2.0}) for seed in (1, 2)]
    theirs = [log("longer1", {100: 5.0, 200: 2.5}), log("longer2", {100: 6.0, 200: 1.5})]
    found = drawn(lead, tmp_path / "lead.svg", *ours, *theirs)
    assert [list(row.values()) for row in found] == [
        ["longer", "50", "1.5", "1", "2", "2"],
        ["longer", "100", "0", "-0.5", "0.5", "2"],
    ]
    assert "loop: must be followed by runs of another label" in rejected(
        lead.main, *ours, "--output", tmp_path / "a.svg"
    )
    words = (ours[0], *theirs, "--output", tmp_path / "a.svg")
    assert "longer: has 2 runs, loop 1; must have as many or fewer" in rejected(lead.main, *words)


def test_curves_of_fairseq_and_timm(runs, trained, tmp_path):
    logs = [f"{name}={runs / name / 's1' / 'summary.csv'}" for name in RUNS]
    found = drawn(curves, tmp_path / "top1.png", *logs, "--x", "epoch", "--y", "eval_top1", "--unit", "%")
    assert [row["run"] for row in found] == [name for name in RUNS for _ in range(2)]
    *_, last = drawn(curves, tmp_path / "loss.png", logs[0], "--y", "train_loss")
    assert list(last) == ["run", "updates", "training loss, nats"]
    log, output = tmp_path / "train.log", tmp_path / "loss.svg"
    log.write_text(trained.log)
    assert list(drawn(curves, output, f"numbers={log}")[0]) == ["run", "updates", "validation loss, bits"]
    assert list(drawn(curves, output, f"numbers={log}", "--y", "valid_ppl")[0])[-1] == "validation ppl"
    *_, last = drawn(curves, output, f"numbers={log}", "--nats", "--reference", "chance=3")
    logged = cli.logged(trained.log, "valid")[-1]
    assert float(last["updates"]) == logged["valid_num_updates"]
    assert float(last["validation loss, nats"]) == pytest.approx(logged["valid_loss"] * 0.6931472, rel=1e-4)
    assert "chance: 3" in output.read_text()


@pytest.mark.parametrize(("tool", "words"), [(curves, ("--x", "epoch", "--y", "eval_top1")), (coefficients, ())])
def test_an_axis_of_one_epoch_has_its_number_only(runs, tmp_path, tool, words):
    lines = (runs / "sret_tl" / "s1" / "summary.csv").read_text().splitlines(keepends=True)
    (tmp_path / "summary.csv").write_text("".join(lines[:2]))
    drawn(tool, tmp_path / "one.svg", tmp_path / "summary.csv", *words)
    axis = (
        (tmp_path / "one.svg").read_text().partition('id="matplotlib.axis_1"')[2].partition('id="matplotlib.axis_2"')[0]
    )
    assert re.findall("<!-- (.*) -->", axis) == ["1", "epochs"]


def test_the_pictures_of_the_repository_have_their_numbers_and_commands():
    home = cli.REPOSITORY / "recipes" / "analysis"
    text = (home / "README.md").read_text()
    shown = set(re.findall(r"\]\(([\w-]+)\.svg\)", text))
    assert shown == {path.stem for path in home.glob("*.svg")} == {path.stem for path in home.glob("*.csv")}
    commands = set(re.findall(r"`recipes/figures/(\w+)\.py", text))
    assert {"cka", "landscape", "curves"} < commands
    assert commands <= {path.stem for path in (cli.REPOSITORY / "recipes" / "figures").glob("*.py")}


def test_bad_input_is_named(runs, trained, tmp_path, rejected):
    image, text = checkpoint(runs, "sret_tl"), trained.folder / "checkpoint_last.pt"
    same_label = [runs / name / "s1" / "last.pth.tar" for name in ("ringformer_vit", "owf_vit")]
    ring, cut = runs / "ringformer_vit" / "s1" / "summary.csv", tmp_path / "cut.pth.tar"
    cut.write_bytes(same_label[0].read_bytes()[:1000])
    of_images = (attention_distance, landscape, responses)
    (tmp_path / "model.bin").touch()
    torch.save({}, bare := tmp_path / "bare.pth.tar")
    for tool, words, message in (
        (cka, ("/no/model.pt", text), "/no/model.pt: no such checkpoint"),
        (cka, (tmp_path / "model.bin", text), "model.bin: must be a .pt of fairseq-train or a .pth.tar of train_image"),
        (cka, (image, text), "must be a checkpoint of fairseq-train (.pt)"),
        *((tool, (cut,), "cut.pth.tar: not a checkpoint that") for tool in of_images),
        *((tool, (image, "--data", tmp_path / "gone"), "gone': must be a folder") for tool in of_images),
        (attention_distance, (image,), "must be a model with one grid of tokens, not a pyramid"),
        *((landscape, (other,), f"{other}: must be a checkpoint of train_image.py") for other in (text, bare)),
        (landscape, (image, "--steps", "4"), "argument --steps: 4: must be odd"),
        (landscape, (image, "--reach", "nan"), "argument --reach: nan: must be > 0 and finite"),
        (responses, (image, "--samples", "0"), "argument --samples: 0: must be > 0 and finite"),
        (attention_distance, same_label, "labels s1, s1: must differ; use LABEL=CHECKPOINT"),
        (landscape, same_label, "labels s1, s1: must differ; use LABEL=CHECKPOINT"),
        (curves, (tmp_path,), "must be a file, not a folder"),
        (curves, (ring, "--y", "valid_bleu", "--x", "epoch"), "valid_bleu: not in"),
        (curves, (ring, "--y", "eval_loss", "--nats"), "--nats: converts a loss in a log of fairseq: eval_loss of"),
        (curves, ("train.log", "--y", "valid_ppl", "--nats"), "--nats: converts a loss in a log of fairseq: valid_ppl"),
        (coefficients, (ring,), "summary.csv: has no residual coefficients"),
    ):
        assert message in rejected(tool.main, *words, "--output", tmp_path / "a.svg")
    with pytest.raises(ValueError, match="/gone: no such folder of images; name it by --data"):
        checkpoints.ImageRun(same_label[0], f"{tmp_path}/gone").images(1, 1)
    message = rejected(cka.main, text, text, "--output", tmp_path / "a.pdf")
    assert "a.pdf': must end in .svg or .png" in message
    assert not (tmp_path / "a.svg").exists()
