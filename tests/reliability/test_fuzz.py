"""Random options for every registered architecture and model: each builds and trains a step, or is rejected in a line.

`make fuzz` tries more than the two rounds of the other tests, with other options each time.
"""

import argparse
import contextlib
import io
import math
import os
import random

import pytest
import timm
import torch

import timm_plugin
from tests.support import models, vision
from tests.support.flags import parser

pytestmark = pytest.mark.slow

SEEDS = random.sample(range(10**6), int(os.environ["ROUNDS"])) if "ROUNDS" in os.environ else range(2)

NUMBERS = [-1, 0, 1, 2, 3, 4, 6, 8, 16, 10**6]
RATES = [-0.1, 0.0, 0.1, 0.5, 1.0, 1.5, math.nan]
TEXTS = ["none", "", "x", "1", "2,4", "8,14", "0,1,1", "4,2", "nan", "/dev/null", "/nonexistent"]
VALUES = [*NUMBERS[:-1], *RATES, None, True, "2", "x", (1, 1, 1), [2, 4], (), ((1, 1),) * 3, math.inf]


def attempt(seed: int, name: str) -> tuple[str, object]:
    """Tries a registered name with the random options of a seed: "works", "rejected", or what is wrong; the options."""
    chance = random.Random(f"{seed} {name}")
    torch.manual_seed(seed)
    image = name in timm_plugin.MODELS
    options = image_options(name, chance) if image else text_options(name, chance)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            loss = image_loss(name, options) if image else text_loss(name, options)
            loss.backward()
        outcome = "works" if math.isfinite(float(loss)) else f"a loss of {float(loss)}"
    except (ValueError, SystemExit) as error:
        outcome = "rejected" if "\n" not in str(error) else f"rejected in lines: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, options


def text_options(arch: str, chance: random.Random) -> list[str]:
    tiny = models.tiny_flags(arch)
    known = [action for action in parser(arch)._actions if action.help != argparse.SUPPRESS]
    chosen = chance.sample(known, min(chance.randint(1, 3), len(known)))
    return [*tiny, *(word for action in chosen for word in flag(action, chance))]


def flag(action: argparse.Action, chance: random.Random) -> list[str]:
    """An option of the command line with a value."""
    if action.nargs == 0:
        return [action.option_strings[0]]
    if action.choices:
        value = chance.choice(list(action.choices))
    else:
        value = chance.choice({int: NUMBERS[:-1], float: RATES}.get(action.type, TEXTS))
    return [f"{action.option_strings[0]}={value}"]


def text_loss(arch: str, flags: list[str]) -> torch.Tensor:
    model = begun(models.build(arch, *flags).double())
    return first(model(*models.inputs(arch))).square().mean()


def begun(model: torch.nn.Module) -> torch.nn.Module:
    """A model in training, which draws its depth by the number of the update where it draws one."""
    if hasattr(model, "set_num_updates"):
        model.set_num_updates(1)
    return model.train()


def first(output: object) -> torch.Tensor:
    while isinstance(output, tuple | list):
        output = output[0]
    return output


def image_options(name: str, chance: random.Random) -> dict:
    small = {**vision.small_shape(name), "num_classes": 3}
    config = timm.create_model(name, **small).config
    chosen = chance.sample(config.options(), chance.randint(1, 2))
    return {**small, **{option: chance.choice(VALUES) for option in chosen}}


def image_loss(name: str, options: dict) -> torch.Tensor:
    model = begun(timm.create_model(name, **options))
    if max(model.patch_embed.img_size) > 256:
        raise ValueError("too large to be tried")
    return first(model(vision.images(model))).float().square().mean()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_attempt_works_or_is_rejected(seed):
    found = {name: attempt(seed, name) for name in (*models.EVERY, *timm_plugin.MODELS)}
    outcomes = [outcome for outcome, _ in found.values()]
    assert {name: each for name, each in found.items() if each[0] not in ("works", "rejected")} == {}
    assert min(outcomes.count("works"), outcomes.count("rejected")) > len(outcomes) / 10
