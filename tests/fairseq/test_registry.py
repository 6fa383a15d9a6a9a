"""What is registered, and how many parameters it stores at full size."""

import sys

import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from torch import nn

from fairseq_plugin.catalogue import architectures
from fairseq_plugin.modules.build import numbered_dictionary
from fairseq_plugin.modules.language_model import LanguageModel
from fairseq_plugin.modules.model import LoopedTransformer, register_family
from recurrence import count
from tests.fairseq import (
    test_admin,
    test_incremental,
    test_invariants,
    test_language_incremental,
    test_language_invariants,
    test_language_options,
    test_published,
)
from tests.support import cli, language, models, speech

# Parameters of the two stacks with 6 + 6 passes, embeddings and output layer apart.
CORE = {
    "ringformer_tiny": 564_736,
    "ringformer_base": 8_943_616,
    "ringformer_large": 35_713_024,
    "universal_tiny": 460_032,
    "universal": 7_345_152,
    "universal_large": 29_370_368,
    "one_wide_ffn_tiny": 1_314_048,
    "one_wide_ffn_base": 20_984_832,
    "one_wide_ffn_large": 83_912_704,
    "vanilla_tiny": 2_755_584,
    "vanilla_base": 44_052_480,
    "vanilla_large": 176_185_344,
}
# Parameters of the whole model with 32,768 joint symbols in one matrix.
TOTAL = {
    "takase_vanilla": 60_915_712,
    "takase_vanilla_deep": 149_192_704,
    "takase_vanilla_big": 209_911_808,
    "sequence_big": 209_911_808,
    "cycle_big": 209_911_808,
    "cycle_rev_big": 209_911_808,
    "universal_big": 184_614_912,
    "sequence": 60_915_712,
    "cycle": 60_915_712,
    "cycle_rev": 60_915_712,
    "sandwich": 38_846_464,
    "universal_small": 24_133_632,
    "universal_wide": 62_947_328,
    "universal_wide_deep": 62_947_328,
    "recursive_iwslt_de_en": 48_320_572,
    "recursive_wmt_en_de": 60_915_772,
}
# Orders of encoder and decoder, as presets.
ORDERS = {
    "sequence": (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
    "cycle": (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5),
    "cycle_rev": (0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0),
    "sandwich": (0, *(1,) * 10, 2),
    "takase_vanilla": (0, 1, 2, 3, 4, 5),
    "takase_vanilla_deep": tuple(range(18)),
    "takase_vanilla_big": (0, 1, 2, 3, 4, 5),
    "sequence_big": (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
    "cycle_big": (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5),
    "cycle_rev_big": (0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0),
    "universal_big": (0,) * 6,
    "universal_small": (0,) * 6,
    "universal_wide": (0,) * 6,
    "universal_wide_deep": (0,) * 12,
    "vanilla_base": (0, 1, 2, 3, 4, 5),
    "ringformer_base": (0,) * 6,
    "universal": (0,) * 6,
    "recursive_iwslt_de_en": (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
    "recursive_wmt_en_de": (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
}


def core(model: nn.Module) -> int:
    return sum(count.stored(loop) for loop in models.loops(model))


def test_no_architecture_is_left_out():
    assert sorted({**CORE, **TOTAL}) == models.ARCHS
    assert len(CORE) + len(TOTAL) == len(models.ARCHS) == 28


# What speech has no part in: learned positions, one matrix for source and target, post-norm stacks.
WORDS_ALONE = {
    "test_learned_positions_step_by_step",
    "test_gradient_of_one_matrix_for_all_is_the_sum_of_three",
    "test_pre_norm_is_another_model_with_a_final_norm",
}


def test_every_invariant_is_tested_on_every_architecture():
    tested = models.architectures_tested(test_published) | models.architectures_tested(test_admin)
    assert tested
    assert all(archs == models.ARCHS for archs in tested.values())
    tested = models.architectures_tested(test_invariants) | models.architectures_tested(test_incremental)
    assert len(tested) == 22
    assert set(tested) > WORDS_ALONE
    for name, archs in tested.items():
        assert archs == (models.ARCHS if name in WORDS_ALONE else models.EVERY), name


# Parameters of the whole model with 10,000 symbols in one matrix, and the orders of encoder and decoder.
SPEECH = {
    "s2t_vanilla": (52_293_632, tuple(range(6)), tuple(range(6))),
    "s2t_sequence": (50_190_336, tuple(depth // 2 for depth in range(16)), (0, 0, 1, 1, 2, 2, 3, 3)),
    "s2t_cycle": (50_190_336, (*range(8), *range(8)), (0, 1, 2, 3, 0, 1, 2, 3)),
    "s2t_cycle_rev": (50_190_336, (*range(8), *range(7, -1, -1)), (0, 1, 2, 3, 3, 2, 1, 0)),
    "s2t_universal": (53_685_248, (0,) * 6, (0,) * 6),
}


@pytest.mark.parametrize("arch", SPEECH)
def test_parameters_and_orders_of_speech(arch):
    on = speech.task(numbered_dictionary(10_000), features=80)
    model = models.on_meta(arch, "--share-decoder-input-output-embed", on=on)
    assert (count.stored(model), *(loop.order for loop in models.loops(model))) == SPEECH[arch]
    # M + M blocks, the convolutions of 80 features, the matrix of the symbols, the norm at the end of either stack.
    channels, (width, ffn) = 1024, (1024, 6144) if arch == "s2t_universal" else (512, 2048)
    blocks = [len(loop.blocks) for loop in models.loops(model)]
    layer = 4 * width * width + 4 * width + 2 * width * ffn + ffn + width + 2 * width * 2
    cross = 4 * width * width + 4 * width + 2 * width
    convolutions = 80 * 5 * channels + channels + channels // 2 * 5 * 2 * width + 2 * width
    total = sum(blocks) * layer + blocks[1] * cross + convolutions + 10_000 * width + 4 * width
    assert SPEECH[arch][0] == total


def test_no_model_for_speech_is_left_out():
    assert sorted(SPEECH) == speech.ARCHS
    assert len(speech.ARCHS) == 5
    assert sorted(models.ARCHS + speech.ARCHS) == models.EVERY


# Symbols, flags, parameters of the whole model.
LANGUAGE = [
    ("ilr_small", 1024, "", 1_180_800),
    ("ilr_small", 1024, "--position alibi --reuse-map 1,1,1,1", 1_180_800),
    ("ilr_small", 1024, "--position learned", 1_311_872),
    ("ilr_small", 1024, "--position none --block-loops 2 --inject-embedding", 1_180_800),
    ("ilr_large", 32_000, "", 100_086_528),
    ("ilr_large", 32_000, "--position learned", 100_872_960),
    ("vanilla_lm", 267_744, "", 120_971_264),
    ("sequence_lm", 267_744, "", 120_971_264),
    ("cycle_lm", 267_744, "", 120_971_264),
    ("cycle_rev_lm", 267_744, "", 120_971_264),
    ("vanilla_lm", 267_744, "--decoder-layers 16", 246_933_504),
    ("universal_lm", 267_744, "", 120_721_920),
    ("sequence_lm_large", 267_744, "", 234_337_280),
    ("recurrent_lm", 65, "", 1_795_584),
]
LANGUAGE_ORDERS = {
    "ilr_small": (0, 0, 0, 0, 1, 1, 2, 3),
    "ilr_large": (0, 1, 1, 2, 3, 4, 5, 6, 7),
    "vanilla_lm": (0, 1, 2, 3, 4, 5),
    "sequence_lm": (0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5),
    "cycle_lm": (0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5),
    "cycle_rev_lm": (0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0),
    "universal_lm": (0,) * 6,
    "sequence_lm_large": tuple(depth // 2 for depth in range(30)),
    "recurrent_lm": (0,),
}


@pytest.mark.parametrize(("arch", "symbols", "flags", "parameters"), LANGUAGE)
def test_parameters_of_language_models(arch, symbols, flags, parameters):
    model = language.on_meta(arch, *flags.split(), on=language.task(symbols, tokens_per_sample=1024))
    assert count.stored(model) == parameters


@pytest.mark.parametrize("arch", LANGUAGE_ORDERS)
def test_preset_orders_of_language_models(arch):
    (loop,) = language.loops(language.on_meta(arch, on=language.task(70_000)))
    assert loop.order == LANGUAGE_ORDERS[arch]


def test_no_language_model_is_left_out():
    assert {arch for arch, *_ in LANGUAGE} == set(language.ARCHS)
    assert len(language.ARCHS) == 9
    assert len(models.EVERY) + len(language.ARCHS) == len(architectures())
    tested = {}
    for module in (test_language_invariants, test_language_incremental, test_language_options):
        tested |= models.architectures_tested(module)
    assert len(tested) > 20
    assert all(archs == language.ARCHS for archs in tested.values())


@pytest.mark.parametrize("arch", models.EVERY + language.ARCHS)
def test_registered_object_is_ours(arch):
    base = LoopedTransformer if arch in models.EVERY else LanguageModel
    assert issubclass(ARCH_MODEL_REGISTRY[arch], base)
    assert MODEL_REGISTRY[ARCH_MODEL_NAME_REGISTRY[arch]] is ARCH_MODEL_REGISTRY[arch]
    assert ARCH_CONFIG_REGISTRY[arch].__module__.startswith("fairseq_plugin.")


@pytest.mark.parametrize("arch", CORE)
def test_core_parameters(arch):
    model = models.on_meta(arch)
    assert core(model) == CORE[arch]
    assert [loop.passes for loop in models.loops(model)] == ([12, 6] if arch.startswith("one_wide_ffn") else [6, 6])


@pytest.mark.parametrize("arch", TOTAL)
def test_parameters_in_all(arch):
    model = models.on_meta(arch, "--share-all-embeddings", on=models.task(32_768, 32_768))
    assert count.stored(model) == TOTAL[arch]


@pytest.mark.parametrize(
    ("arch", "flags", "parameters"),
    [
        ("sequence", "--encoder-layers 18 --decoder-layers 18", 60_915_712),
        ("cycle", "--encoder-layers 6 --decoder-layers 6", 60_915_712),
        ("cycle", "--encoder-layers 18 --decoder-layers 18 --share-layer-num 1", 149_192_704),
        ("cycle", "--init admin", 60_946_432),
        ("cycle_rev", "--init admin --encoder-layers 18 --decoder-layers 18", 60_961_792),
        # SReT's recursion; its first row has the size of fairseq's own model, with blocks that run once.
        ("recursive_wmt_en_de", "--no-lrc", 60_915_712),
        ("recursive_wmt_en_de", "--nll", 73_547_884),
        ("recursive_iwslt_de_en", "--no-lrc", 48_320_512),
        ("recursive_iwslt_de_en", "--nll", 60_952_684),
    ],
)
def test_other_rows_of_joint_models(arch, flags, parameters):
    model = models.on_meta(arch, "--share-all-embeddings", *flags.split(), on=models.task(32_768, 32_768))
    assert count.stored(model) == parameters


FFN_8192 = "--encoder-ffn-embed-dim 8192 --decoder-ffn-embed-dim 8192"
TIED = "--share-decoder-input-output-embed"


@pytest.mark.parametrize(
    ("arch", "flags", "parameters", "paper"),
    [
        *(
            (arch, TIED, 241_893_376, 242)
            for arch in ("takase_vanilla_big", "sequence_big", "cycle_big", "cycle_rev_big")
        ),
        ("universal_big", TIED, 248_578_048, 249),
        ("cycle_rev_big", f"{TIED} {FFN_8192}", 342_605_824, 343),
        ("takase_vanilla_big", f"{FFN_8192} --encoder-layers 9 --decoder-layers 9", 513_908_736, 514),
    ],
)
def test_the_high_resource_rows_of_takase(arch, flags, parameters, paper):
    """The paper's millions follow from 32,000 symbols a language; Kiyono et al. tie no matrices."""
    task = models.task(32_000, 31_999)  # of another size, so that they are apart
    model = models.on_meta(arch, *flags.split(), on=task)
    width = model.decoder.embed_tokens.embedding_dim
    assert count.stored(model) == parameters - width * (1 if TIED in flags else 2)
    assert round(parameters / 1e6) == paper


@pytest.mark.parametrize(
    ("flags", "parameters"),
    [
        ("", 564_736),
        ("--level-signal static", 460_032),
        ("--attention-signal none", 491_008),
        ("--signal-rank-divisor 32", 515_584),
        ("--signal-rank-divisor 16", 564_736),
        ("--signal-rank-divisor 8", 663_040),
        ("--level-signal full", 1_252_864),
        ("--attention-signal before", 564_736),
        # The paper has 0.57M and 0.54M, which do not follow from the rows' descriptions.
        ("--ffn-signal none", 540_160),
        ("--ffn-signal inside", 601_600),
    ],
)
def test_rows_of_ringformers_table_4(flags, parameters):
    assert core(models.on_meta("ringformer_tiny", *flags.split())) == parameters


@pytest.mark.parametrize("arch", ORDERS)
def test_preset_orders(arch):
    assert [loop.order for loop in models.loops(models.on_meta(arch))] == [ORDERS[arch]] * 2


@models.every_model
def test_unshared_model_stores_what_it_counts(arch):
    model = models.tiny(arch)
    assert count.unshared(model) == count.stored(models.untied(model))


@pytest.mark.parametrize(("name", "arch"), [("transformer", "fresh_arch"), ("fresh_model", "vanilla_base")])
def test_a_name_that_is_taken_is_refused(name, arch):
    before = set(MODEL_REGISTRY), set(ARCH_MODEL_REGISTRY)
    with pytest.raises(ValueError, match=f"{name if name in MODEL_REGISTRY else arch}: another model is registered"):
        register_family(name, LoopedTransformer, {arch: {}})
    assert (set(MODEL_REGISTRY), set(ARCH_MODEL_REGISTRY)) == before


def test_the_core_needs_no_host():
    """`recurrence` imports with both hosts blocked."""
    core = cli.REPOSITORY / "recurrence"
    paths = (path.relative_to(core).with_suffix("") for path in core.rglob("*.py") if path.stem != "__init__")
    names = sorted(".".join(path.parts) for path in paths)
    code = "import sys; sys.modules['fairseq'] = sys.modules['timm'] = None\n"
    code += "".join(f"import recurrence.{name}\n" for name in names) + "print('imported')"
    assert cli.python("-c", code).strip() == "imported"
    assert "fairseq" in sys.modules  # so that the block above means something


def test_meta_models_take_no_memory():
    assert all(parameter.device == torch.device("meta") for parameter in models.on_meta("vanilla_large").parameters())
