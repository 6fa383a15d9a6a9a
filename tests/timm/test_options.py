"""Options of image models: each of any two has an effect, or is rejected by name with the rule."""

import itertools
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch

from tests.support import stacks, vision
from timm_plugin._config import DEPTH_OPTIONS

# A model of each family.
NAMES = ("plain_vit", "uit", "owf_vit", "ringformer_vit", "recursive_deit_tiny", "recursive_mixer_s16", "sret_t")
# Values for every option of any family; the first one that a small model does not have is tried.
VALUES: dict[str, tuple[Any, ...]] = dict(
    img_size=(64,),
    in_chans=(1,),
    num_classes=(3,),
    **dict.fromkeys(vision.RATES, (0.5,)),
    depth_range=((1, 2),),
    depth_seed=(7,),
    depth_warmup_updates=(3,),
    mixed_depth=(True,),
    pass_loss=(0.5,),
    patch_size=(16,),
    global_pool=("max",),
    embed_dim=(16,),
    depth=(4,),
    num_heads=(4,),
    mlp_ratio=(3.0,),
    loops=(3,),
    order=((0, 1, 1, 2),),
    loop_order=("external",),
    level_signal=("learned",),
    signal_rank_divisor=(4,),
    pos_embed=("none",),
    class_token=(True, False),
    stem=("conv",),
    nll=(True,),
    lrc=(True, False),
    norm_eps=(0.5,),
    depths=((2, 1, 1),),
    groups=(((2, 2), (1, 1), (1, 1)),),
    permuted_runs=("all",),
    inference_permutation=("random",),
    permutation_seed=(5,),
    nll_ratio=(0.5,),
    drop_path_placement=("published",),
)
OF_SRET: dict[str, tuple[Any, ...]] = dict(num_heads=((4, 4, 4),), img_size=(128,), stem=("patch",))
UPDATES = 6  # enough that draws of two seeds differ


@cache
def configuration(name: str) -> Any:
    return vision.fresh(name).config


def value(name: str, option: str) -> Any:
    """A value of the option that differs from the model's."""
    values = OF_SRET.get(option, VALUES[option]) if name == "sret_t" else VALUES[option]
    return next(value for value in values if value != getattr(configuration(name), option))


class Seen:
    """All that a user sees of a model: shapes, initial values, outputs and gradients; computed as far as it is read."""

    def __init__(self, name: str, options: dict[str, Any]):
        try:
            model = vision.fresh(name, **options)
        except ValueError:
            model = None
        self.rejected, self.parts, self.coming = model is None, [], self.see(model)

    def see(self, model: torch.nn.Module) -> Iterator[list]:
        yield [(key, tuple(tensor.shape)) for key, tensor in model.state_dict().items()]
        yield [parameter.detach().abs().sum().item() for parameter in model.parameters()]
        stacks.randomise(model, 0, noise=0.1)
        x = vision.images(model)
        torch.manual_seed(0)
        yield model.eval()(x).flatten().tolist()
        if model.supervises_depths:
            model.set_deep_supervision()
        model.train()
        for update in itertools.count():
            model.zero_grad()
            model.set_num_updates(update)
            torch.manual_seed(0)
            y = model(x)
            y = torch.cat(y) if isinstance(y, list) else y
            yield y.flatten().tolist()
            y.square().sum().backward()
            yield [None if p.grad is None else p.grad.abs().sum().item() for p in model.parameters()]

    def part(self, index: int) -> list:
        while len(self.parts) <= index:
            self.parts.append(next(self.coming))
        return self.parts[index]

    def equals(self, other: "Seen", updates: int) -> bool:
        return not other.rejected and all(self.part(i) == other.part(i) for i in range(3 + 2 * updates))


def test_there_is_a_model_of_each_family():
    families = {type(configuration(name)) for name in NAMES}
    assert len(families) == len(NAMES)
    assert families == {type(vision.fresh(name).config) for name in vision.MODELS}


@pytest.mark.slow
@pytest.mark.parametrize("family", NAMES)
def test_both_of_any_two_options_act_or_they_are_rejected(family):
    """So that one acts which needs another, too."""
    options = configuration(family).options()
    seen = cache(lambda option: Seen(family, {option: value(family, option)}))
    silent = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for pair in itertools.combinations(options, 2):
            if "drop_path_placement" in pair and "drop_path_rate" not in pair:
                continue  # no rule, because timm saves this option and no rates
            updates = UPDATES if DEPTH_OPTIONS.keys() & set(pair) else 1
            both = Seen(family, {option: value(family, option) for option in pair})
            silent += [pair] if not both.rejected and any(both.equals(seen(one), updates) for one in pair) else []
    assert not silent, silent


def test_values_outside_their_range_are_rejected_in_every_family():
    checked = set()
    for name in NAMES:
        for field in fields(configuration(name)):
            choices, least = (field.metadata.get(kind) for kind in ("choices", "least"))
            wrong = ["other"] if choices else [] if least is None else [least - 1]
            rule = f"must be one of {choices}" if choices else f"must be >= {least}"
            if field.name.endswith("_rate"):
                wrong, rule = [-0.1, 1.5], "must be a rate within [0, 1]"
            for value in wrong if field.name in configuration(name).options() else ():
                with pytest.raises(ValueError, match=re.escape(f"{field.name}={value!r}: {rule}")):
                    vision.fresh(name, **{field.name: value})
                checked.add(field.name)
    assert checked >= {"in_chans", "depth", "loops", "signal_rank_divisor", "permuted_runs", *vision.RATES}


TYPES = {
    "recursive_deit_tiny": {
        "num_heads": ["2", 1.5, math.nan, True, {}],
        "mlp_ratio": [math.nan, math.inf, "4", (4,), True],
        "drop_rate": ["0.1", math.nan, True],
        "nll": [1, "yes"],
        "global_pool": [1, True],
        "order": ["0,1", (0, 1.5)],
        "img_size": ["224", (1, 2, 3), (224,), 1.5, (), True],
    },
    "sret_t": {"depths": [3, "22", (1.5, 2, 2), ("1",)], "groups": [(1, 1, 1), 2, "8", ((1.5, 1),) * 3]},
}


@pytest.mark.parametrize(
    ("model", "option", "value"),
    [(model, option, value) for model in TYPES for option in TYPES[model] for value in TYPES[model][option]],
)
def test_a_value_of_another_type_is_named(model, option, value):
    with pytest.raises(ValueError, match=f"^{option}="):
        vision.fresh(model, **{option: value})


REJECTIONS = {
    "plain_vit": [
        (dict(num_heads=3), "num_heads=3: must divide embed_dim=32"),
        (dict(mlp_ratio=1e-9), r"mlp_ratio \* embed_dim=0: must be >= 1"),
        (dict(global_pool="map"), "global_pool='map': must be one of"),
        (dict(num_classes=-1), "num_classes=-1: must be >= 0"),
        (dict(img_size=(32, 4)), r"img_size=\(32, 4\): must be >= patch_size=8"),
        (dict(class_token=False), "global_pool='token': needs class_token=True"),
        (dict(order=(0, 1, 3)), r"order=\(0, 1, 3\): names block 3, but there are 3 blocks"),
        (dict(order=()), r"order=\(\): needs at least one pass"),
        (dict(order="0,1"), r"order='0,1': must be of type Sequence\[int\] \| None"),
    ],
    "owf_vit": [(dict(order=(0, 1)), r"order=\(0, 1\): must be None in this family")],
    "uit": [
        (dict(depth_range=(1, 2, 3)), r"depth_range=\(1, 2, 3\): must be two numbers of passes"),
        (dict(depth_range="1-3"), r"depth_range='1-3': must be of type Sequence\[int\] \| None"),
        (dict(depth_range=(1, 4)), "depth_range=1-4: MAX must be <= 3, because"),
        (dict(depth_seed=3), "depth_seed=3: needs depth_range"),
        (dict(depth=1, mixed_depth=True), "mixed_depth=True: the order 0 has no shorter form that runs each"),
    ],
    "deit, external loops": [(dict(depth=2, depth_range=(3, 4)), "depth_range=3-4: .* cannot run at depth 3")],
    "recursive_mixer_s16": [(dict(num_heads=2), "num_heads=2: must be 1 in this family")],
    "ringformer_vit": [
        (dict(signal_rank_divisor=33), "embed_dim // signal_rank_divisor=0: must be >= 1 and <= embed_dim=32"),
    ],
    "recursive_deit_tiny": [
        (dict(loop_order="sandwich", depth=2), "depth=2: must be 3 with sandwich"),
        (dict(stem="conv"), "patch_size=8: stem='conv' has patches of 16"),
        (dict(order=(0, 1), depth=2, loops=2), r"order=\(0, 1\): conflicts with loops=2"),
        (dict(depth_range=(2, 6)), "depth_range=2-6: the order 0 0 1 1 2 2 cannot run at depth 2, only at 3, 6$"),
        (dict(pass_loss=1.0), "pass_loss=1.0: needs an earlier pass at which a shallower model would end"),
    ],
    "sret_t": [
        (dict(embed_dim=7), "embed_dim=7: must be even"),
        (dict(depths=(2, 2, 1), depth_range=(2, 1)), "depth_range=2-1: must be MIN-MAX with 1 <= MIN < MAX"),
        (dict(pass_loss=1.0), "pass_loss=1.0: must be 0 in a pyramid"),
        (dict(depths=()), r"depths=\(\): needs at least one"),
        (dict(depths=(1, 0, 1)), r"depths=\(1, 0, 1\): needs at least one, and each must be >= 1"),
        (dict(num_heads=(2, 4)), r"num_heads=\(2, 4\): needs one entry for each of 3 stages"),
        (dict(num_heads=(3, 2, 4)), "num_heads=3: must divide its stage's width=8"),
        (dict(groups=((1,), (), (1,))), "groups=.*: needs at least one number for each stage"),
        (dict(groups=((1, 1), (3, 1), (1, 1))), r"groups=3: must divide the 16 tokens \(4 x 4\) of stage 2"),
        (dict(mlp_ratio=0.1), r"mlp_ratio \* its stage's width=0: must be >= 1"),
        (dict(nll_ratio=-1), "nll_ratio=-1: must be >= 0"),
        (dict(nll_ratio=0.1), r"nll_ratio \* its stage's width=0: must be >= 1"),
        (dict(permutation_seed=7, groups=((1, 1),) * 3), "permutation_seed=7: needs slices in groups"),
        (dict(permutation_seed=7, inference_permutation="random"), "permutation_seed=7: needs inference_permutation="),
        (dict(stem="patch", img_size=(64, 15)), r"img_size=\(64, 15\): must be >= 16, the side of a patch"),
        (dict(class_token=True), r"groups=.*: class_token=True needs 1 everywhere, as the token is in no slice"),
        (dict(global_pool="token"), "global_pool='token': must be one of"),
        (dict(global_pool=""), "global_pool='': needs num_classes=0, or a class token"),
    ],
}


@pytest.mark.parametrize(
    ("model", "options", "message"), [(model, *case) for model, cases in REJECTIONS.items() for case in cases]
)
def test_wrong_values_are_rejected(model, options, message):
    with pytest.raises(ValueError, match=message):
        vision.fresh(model, **options)


def test_an_option_of_another_family_is_unknown():
    with pytest.raises(TypeError, match="^RingFormerConfig got an unexpected keyword argument 'loops'$"):
        vision.fresh("ringformer_vit", loops=2)
    near = "^UniversalConfig got an unexpected keyword argument 'num_head'; did you mean 'num_heads'\\?$"
    with pytest.raises(TypeError, match=near):
        vision.fresh("uit", num_head=2)


def test_another_head_obeys_the_rules_for_pooling():
    with pytest.raises(ValueError, match="global_pool='token': must be one of"):
        vision.fresh("recursive_mixer_s16").reset_classifier(0, "token")
    with pytest.raises(ValueError, match="num_classes=-1: must be >= 0"):
        vision.fresh("uit").reset_classifier(-1)
    model = vision.fresh("sret_t").eval()
    needs = "global_pool='': needs num_classes=0, or a class token"
    with pytest.raises(ValueError, match=needs):
        model.reset_classifier(3, "")
    assert model(vision.images(model)).shape == (2, vision.CLASSES)
    model.prune_intermediate_layers([0])
    for unpooled in (model, vision.fresh("sret_t", num_classes=0, global_pool="").eval()):
        assert unpooled(vision.images(unpooled)).dim() == 4
        unpooled.reset_classifier(3)  # timm's own tests do this
        with pytest.raises(ValueError, match=needs):
            unpooled(vision.images(unpooled))
