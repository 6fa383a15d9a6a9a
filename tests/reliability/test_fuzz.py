"""Random options: every registered architecture and model works with them, or rejects them in one line."""

import pytest

import timm_plugin
from tests.reliability import fuzz

pytestmark = pytest.mark.slow

SEEDS = range(2)


@pytest.fixture(scope="module")
def found() -> list[fuzz.Found]:
    return [attempt for seed in SEEDS for attempt in fuzz.attempts(seed)]


def test_every_attempt_works_or_is_rejected(found):
    assert [attempt for attempt in found if attempt.outcome not in ("works", "rejected")] == []


def test_every_name_is_tried_and_both_ends_are_met(found):
    assert {attempt.name for attempt in found} == {*fuzz.ARCHS, *timm_plugin.MODELS}
    outcomes = [attempt.outcome for attempt in found]
    assert min(outcomes.count("works"), outcomes.count("rejected")) > len(outcomes) / 10
