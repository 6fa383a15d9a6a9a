"""The numbers of the figures, against brute force and against cases whose answer is known."""

import itertools
import json
import math

import attention_distance
import cka
import landscape
import logs
import pytest
import responses
import torch
from torch import Tensor, nn

from fairseq_plugin.build import build_language_model, numbered_dictionary
from recurrence.block import Shape
from recurrence.papers.baselines import one_wide_ffn
from tests.support import vision


def features(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Centred kernel alignment


def linear_cka(x: Tensor, y: Tensor) -> float:
    """The biased estimate |Y'X|^2 / (|X'X| |Y'Y|), X and Y centred, (n, features) each."""
    x, y = (features - features.mean(dim=0) for features in (x, y))
    return float((y.T @ x).square().sum() / ((x.T @ x).norm() * (y.T @ y).norm()))


def minibatch_cka(first, second, size):
    found = cka.MinibatchCKA()
    for start in range(0, len(first[0]), size):
        found.update(*([layer[start : start + size] for layer in layers] for layers in (first, second)))
    return found.compute()


def test_the_bootstrap_draws_minibatches():
    one, other = features(4 * 10, 5).split(10), features(4 * 10, 5, seed=1).split(10)
    found = cka.MinibatchCKA()
    for x, y in zip(one, other):
        found.update([x], [x + 0.3 * y])
        assert cka.corresponding(found).endswith("no interval)") == (len(found.minibatches) == 1)
    generator, expected = torch.Generator().manual_seed(0), []
    for _ in range(3):
        again = cka.MinibatchCKA()
        for index in torch.randint(4, (4,), generator=generator).tolist():
            again.update([one[index]], [one[index] + 0.3 * other[index]])
        expected.append(again.compute())
    torch.testing.assert_close(found.bootstrap(3), torch.stack(expected))
    assert found.bootstrap(200).std(dim=0) > 0


def test_hsic_is_the_mean_over_all_fours_of_samples():
    """Song et al., equation 4: the U-statistic with the kernel k(i, j) [l(i, j) + l(q, r) - 2 l(i, q)]."""
    k, other = (x @ x.T for x in (features(7, 3), features(7, 4, seed=1)))
    fours = list(itertools.permutations(range(7), 4))
    expected = sum(k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q]) for i, j, q, r in fours) / len(fours)
    torch.testing.assert_close(cka.hsic(k[None], other[None])[0, 0], expected, atol=1e-10, rtol=0)


def test_minibatch_cka_is_close_to_full_cka_and_unbiased():
    x = features(4000, 20)
    y = torch.cat([x[:, :10], features(4000, 10, seed=1)], dim=1)
    whole = linear_cka(x, y)
    assert float(minibatch_cka([x], [y], 20)[0, 0]) == pytest.approx(whole, abs=0.01)
    apart = float(minibatch_cka([x], [features(4000, 20, seed=2)], 20)[0, 0])
    assert abs(apart) < 0.02
    assert linear_cka(x[:20], features(20, 20, seed=2)) > 0.4  # the biased estimate of as few samples


def test_cka_needs_four_samples():
    with pytest.raises(ValueError, match="minibatch of 3: must be >= 4 samples"):
        cka.MinibatchCKA().update([features(3, 2)], [features(3, 2)])


def test_a_layer_is_a_pass_or_an_attention_with_the_ffn_behind_it():
    """The number of layers among the options does not tell: in a reuse map, they run unequally often."""
    sizes = dict(reuse_map="4,2,1,1", decoder_embed_dim=16, decoder_ffn_embed_dim=16)
    mapped = build_language_model("ilr_small", numbered_dictionary(9), 8, **sizes).decoder.stack.loop
    assert cka.layer_ends(mapped) == [0, 1, 2, 3, 4, 5, 6, 7]
    shape = Shape(width=8, ffn_width=8, heads=2)
    assert cka.layer_ends(one_wide_ffn(shape, 3)) == [1, 3, 5]
    assert cka.layer_ends(one_wide_ffn(shape, 3, memory_width=8)) == [0, 1, 2]


# Attention distance and response maps


@pytest.mark.parametrize("before", [0, 1], ids=["patches alone", "a class token"])
def test_attention_distance_is_that_of_a_loop(before):
    (rows, columns), (height, width) = (2, 3), (4, 8)
    weights = features(2, 3, before + 6, before + 6).softmax(-1)
    places = list(itertools.product(range(rows), range(columns)))
    expected = torch.zeros(3, dtype=torch.float64)
    for image, head, query in itertools.product(range(2), range(3), range(6)):
        row = weights[image, head, before + query, before:]
        for key in range(6):
            (y, x), (v, u) = places[query], places[key]
            far = math.hypot(height * (y - v), width * (x - u))
            expected[head] += row[key] / row.sum() * far / 12
    found = attention_distance.mean_attention_distance(
        weights, attention_distance.patch_distances((rows, columns), (height, width))
    )
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_response_is_the_root_mean_square_of_a_token():
    state = features(2, 7, 3)
    found = responses.response_map(state, (2, 3))
    assert found.shape == (2, 2, 3)
    assert float(found[1, 1, 2]) == pytest.approx(math.sqrt(sum(float(x) ** 2 for x in state[1, 6]) / 3))
    bright = torch.full((1, 4, 8), 300, dtype=torch.float16)  # its squares overflow
    torch.testing.assert_close(responses.response_map(bright, (2, 2)), bright[..., 0].view(1, 2, 2))


# Loss landscapes


class Quadratic(nn.Module):
    """Half the squared distance of its weights from where they began, and a bias that must not move."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(features(3, 4, 2)), nn.Parameter(torch.ones(3))
        self.start = self.weight.detach().clone()

    def loss(self):
        return ((self.weight - self.start).square().sum() / 2 + (self.bias - 1).abs().sum()).item()


def test_the_landscape_of_a_quadratic_is_its_parabola():
    model, steps = Quadratic(), torch.linspace(-1, 1, 5)
    first, second = (landscape.filter_normalised(model, seed) for seed in (0, 1))
    square = float(first["weight"].square().sum())
    assert square == pytest.approx(float(model.weight.detach().square().sum()))
    line = landscape.loss_surface(model, model.loss, [first], steps)
    torch.testing.assert_close(line, steps.double() ** 2 * square / 2)
    plane = landscape.loss_surface(model, model.loss, [first, second], steps)
    moves = steps[:, None, None, None, None] * first["weight"] + steps[None, :, None, None, None] * second["weight"]
    torch.testing.assert_close(plane, moves.square().sum((2, 3, 4)) / 2)
    assert torch.equal(model.weight, model.start), "the trained weights are there again"


def test_directions_are_normalised_filter_by_filter_and_stored_blocks_move_once():
    model = vision.fresh("sret_108_mixed")
    direction = landscape.filter_normalised(model, seed=3)
    parameters = dict(model.named_parameters())
    assert set(direction) == {name for name, weight in parameters.items() if weight.dim() > 1}
    for name, step in direction.items():
        torch.testing.assert_close(step.flatten(1).norm(dim=1), parameters[name].flatten(1).norm(dim=1))
    again, other = (landscape.filter_normalised(model, seed) for seed in (3, 4))
    assert all(
        torch.equal(step, again[name]) and not torch.equal(step, other[name]) for name, step in direction.items()
    )


# Curves


def json_lines(stage, *lines):
    return "".join(f"2026-01-01 | INFO | {stage} | {json.dumps(line)}\n" for line in lines)


def test_curves_of_fairseq(tmp_path):
    log = tmp_path / "train.log"
    first = {"epoch": 1, "valid_loss": "4.5", "valid_num_updates": "10", "valid_note": "none"}
    log.write_text(
        json_lines("train_inner", {"wall": "1800", "train_wall": "9"})
        + json_lines("valid", first)
        + json_lines("train", {"train_wall": "3600", "train_train_wall": "7"})
        + json_lines("valid", {"epoch": 2, "valid_loss": "4", "valid_num_updates": "20"}, first)
    )
    assert logs.curve(log, "updates", "valid_loss") == [(10, 4.5), (20, 4)]
    assert logs.curve(log, "hours", "train_wall", "train_inner") == [(0.5, 9)]
    assert logs.curve(log, "hours", "valid_loss")[0] == (0.5, 4.5)
    with pytest.raises(ValueError, match="valid_bleu: not in .*, which has epoch, hours, updates, valid_loss, valid"):
        logs.curve(log, "epoch", "valid_bleu")
    log.write_text("epoch 001 | valid on 'valid' subset | loss 4\n")
    with pytest.raises(ValueError, match="no line of stage 'valid'"):
        logs.points(log)


def test_curves_over_the_tokens_that_training_has_read(tmp_path):
    log = tmp_path / "train.log"
    inner = [{"wpb": "2000", "num_updates": str(updates)} for updates in (100, 250, 200, 250, 300)]
    valid = [{"valid_loss": "4", "valid_num_updates": "250"}, {"valid1_loss": "3", "valid1_num_updates": "250"}]
    log.write_text(
        json_lines("train_inner", *inner[:2])
        + json_lines("valid", valid[0])
        + json_lines("valid1", valid[1])
        + json_lines("train_inner", *inner[2:])  # a resumed run repeats some
        + json_lines("valid", {"valid_loss": "3.5", "valid_num_updates": "300"})
    )
    assert logs.curve(log, "tokens", "valid_loss") == [(0.5, 4), (pytest.approx(0.6), 3.5)]
    assert logs.curve(log, "tokens", "valid1_loss", "valid1") == [(0.5, 3)]
    assert logs.curve(log, "updates", "valid1_loss", "valid1") == [(250, 3)]


def test_curves_of_the_trainer_of_images(tmp_path):
    log = tmp_path / "summary.csv"
    log.write_text("epoch,train_loss,train_seconds,eval_top1\n0,2.5,1800,10.0\n1,2.0,1800,20.0\n")
    assert logs.curve(log, "epoch", "eval_top1") == [(1, 10), (2, 20)]
    assert logs.curve(log, "hours", "train_loss") == [(0.5, 2.5), (1, 2)]
    log.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no summary.csv"):
        logs.points(log)
