"""The architectures registered with fairseq: their parameter counts, and that no test leaves one out."""

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask

from fairseq_plugin.build import architectures, numbered_dictionary
from fairseq_plugin.register import register_family
from fairseq_plugin.seq2seq import LoopedTransformer
from recurrence import count
from tests.fairseq import (
    test_admin,
    test_configuration,
    test_forward,
    test_incremental,
    test_positions,
    test_rejected_options,
)
from tests.support import language, models, speech
from tests.support.counts import COUNTS, Count

INVARIANTS = (test_admin, test_configuration, test_forward, test_incremental, test_positions, test_rejected_options)
# Invariants of some models only. Speech has no learned positions, no matrix for source and target, no post-norm stacks.
SOME = {
    "test_each_omega_is_the_spread_of_the_sum_before_it": models.ARCHS,
    "test_training_profiles_once_and_is_otherwise_the_same": models.ARCHS,
    "test_pre_norm_is_rejected": models.ARCHS,
    "test_gradient_of_one_matrix_for_all_is_the_sum_of_three": models.ARCHS,
    "test_one_matrix_for_all_needs_sides_that_agree": models.ARCHS,
    "test_older_options_still_work_and_may_repeat_the_new_one": models.ARCHS,
    "test_the_decoders_widths_follow_the_encoders": models.WITH_ENCODER,
    "test_attention_weights_of_every_step": models.WITH_ENCODER,
    "test_beam_search": models.WITH_ENCODER,
    "test_texts_may_be_longer_than_those_of_training": language.ARCHS,
    "test_prompts_are_read_at_once": language.ARCHS,
    "test_tokens_that_have_been_read_are_rejected": language.ARCHS,
    "test_beam_search_goes_on_from_prompts": language.ARCHS,
    "test_a_smaller_output_dictionary_needs_a_matrix_of_its_own": language.ARCHS,
    "test_fairseqs_own_classes_cannot_have_them": ["universal_small", "s2t_cycle", "cycle_lm"],  # a model of each kind
}


def test_no_invariant_leaves_an_architecture_out():
    tested = {name: archs for module in INVARIANTS for name, archs in models.architectures_tested(module).items()}
    assert len(tested) > len(SOME) + 8
    for name, archs in tested.items():
        assert archs >= set(SOME.get(name, models.EVERY)), name


def test_every_architecture_is_of_one_kind_and_counted():
    assert len(set(models.EVERY)) == len(models.EVERY) == len(architectures())
    assert set(models.EVERY) <= {row.model for row in COUNTS}
    assert set().union(*models.REPRESENTS.values()) == set(models.EVERY)
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


@pytest.mark.parametrize(("name", "arch"), [("transformer", "fresh_arch"), ("fresh_model", "vanilla_base")])
def test_a_name_that_is_taken_is_rejected(name, arch):
    before = set(MODEL_REGISTRY), set(ARCH_MODEL_REGISTRY)
    with pytest.raises(ValueError, match=f"{name if name in MODEL_REGISTRY else arch}: another model is registered"):
        register_family(name, LoopedTransformer, {arch: {}})
    assert (set(MODEL_REGISTRY), set(ARCH_MODEL_REGISTRY)) == before
