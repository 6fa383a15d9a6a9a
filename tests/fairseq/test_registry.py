"""The architectures registered with fairseq: their parameter counts, and that every test covers each of them."""

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask

from fairseq_plugin.modules.build import architectures, numbered_dictionary
from fairseq_plugin.modules.language_model import LanguageModel
from fairseq_plugin.modules.model import LoopedTransformer
from fairseq_plugin.modules.register import register_family
from recurrence import count
from tests.fairseq import (
    test_admin,
    test_configuration,
    test_forward,
    test_incremental,
    test_published,
    test_rejected_options,
)
from tests.support import language, models, speech
from tests.support.counts import COUNTS, Count

# Tests for some models only. Speech has no learned positions, no matrix for source and target, no post-norm stacks.
OF_TRANSLATION = {
    "test_gradient_of_one_matrix_for_all_is_the_sum_of_three",
    "test_one_matrix_for_all_needs_sides_that_agree",
}
OF_ENCODERS = {
    "test_the_decoders_widths_follow_the_encoders",
    "test_attention_weights_of_every_step",
    "test_beam_search",
}
OF_LANGUAGE = {
    "test_texts_may_be_longer_than_those_of_training",
    "test_prompts_are_read_at_once",
    "test_tokens_that_have_been_read_are_rejected",
    "test_beam_search_goes_on_from_prompts",
    "test_a_smaller_output_dictionary_needs_a_matrix_of_its_own",
}


def test_every_invariant_is_tested_on_every_architecture():
    of = dict.fromkeys(OF_TRANSLATION, models.ARCHS) | dict.fromkeys(OF_ENCODERS, models.WITH_ENCODER)
    of |= dict.fromkeys(OF_LANGUAGE, language.ARCHS)
    tested = {}
    for module in (test_forward, test_incremental, test_configuration, test_rejected_options):
        tested |= models.architectures_tested(module)
    assert len(tested) > len(of) + 8
    for name, archs in tested.items():
        assert set(archs) == set(of.pop(name, models.EVERY)), name
    assert not of
    tested = models.architectures_tested(test_published) | models.architectures_tested(test_admin)
    assert tested
    assert all(archs == models.ARCHS for archs in tested.values())


def test_every_architecture_is_of_one_kind_and_counted():
    assert len(set(models.EVERY)) == len(models.EVERY) == len(architectures())
    assert set(models.EVERY) <= {row.model for row in COUNTS}
    assert {arch for arch, _ in models.CASES} == set(models.EVERY)
    assert {row.model for row in COUNTS if row.order} >= {*speech.ARCHS, *language.ARCHS}


def task_with(row: Count) -> FairseqTask:
    if row.model in language.ARCHS:
        return language.task(int(row.symbols), tokens_per_sample=1024)
    if row.model in speech.ARCHS:
        return speech.task(numbered_dictionary(int(row.symbols)), features=80)
    source, _, target = row.symbols.partition("+")
    return models.task(int(source), int(target or source)) if source else models.task()


@pytest.mark.parametrize("row", [row for row in COUNTS if row.model in models.EVERY], ids=str)
def test_parameters_and_orders(row):
    model = models.on_meta(row.model, *row.options.split(), on=task_with(row))
    loops = models.loops(model)
    stored = sum(map(count.stored, loops)) if row.counted == "loops" else count.stored(model)
    assert row.agrees(stored, loops), (stored, [loop.order for loop in loops])


@models.every_architecture
def test_registered_object_is_ours(arch):
    base = LoopedTransformer if arch in models.WITH_ENCODER else LanguageModel
    assert issubclass(ARCH_MODEL_REGISTRY[arch], base)
    assert MODEL_REGISTRY[ARCH_MODEL_NAME_REGISTRY[arch]] is ARCH_MODEL_REGISTRY[arch]
    assert ARCH_CONFIG_REGISTRY[arch].func.__self__ is ARCH_MODEL_REGISTRY[arch].options


@pytest.mark.parametrize(("name", "arch"), [("transformer", "fresh_arch"), ("fresh_model", "vanilla_base")])
def test_a_name_that_is_taken_is_rejected(name, arch):
    before = set(MODEL_REGISTRY), set(ARCH_MODEL_REGISTRY)
    with pytest.raises(ValueError, match=f"{name if name in MODEL_REGISTRY else arch}: another model is registered"):
        register_family(name, LoopedTransformer, {arch: {}})
    assert (set(MODEL_REGISTRY), set(ARCH_MODEL_REGISTRY)) == before
