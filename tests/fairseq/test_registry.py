"""The architectures registered with fairseq: their parameter counts, and that tests over all models try each."""

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import FairseqTask

from fairseq_plugin.modules.build import architectures, numbered_dictionary
from fairseq_plugin.modules.model import LoopedTransformer
from fairseq_plugin.modules.register import register_family
from recurrence import count
from tests.support import language, models, speech
from tests.support.counts import COUNTS, Count


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
