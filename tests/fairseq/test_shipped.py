"""The model of pronunciation inside the package."""

import re

import pronunciations
import pytest
import torch

from fairseq_plugin.models.ringformer import WEIGHTS, RingFormer
from fairseq_repairs.checkpoints import load_safely
from tests.support import guide

NAMES = sorted(RingFormer.hub_models())


@pytest.mark.parametrize("name", NAMES)
def test_it_pronounces_words_by_its_name_alone(name):
    hub = RingFormer.from_pretrained(name).eval()
    assert hub.translate("Euphemistic!") == "Y UW F AH M IH S T IH K"
    known = pronunciations.pronunciations(stress=False)
    words = [word for word in known if pronunciations.set_of(word) == "test"][:200]
    right = sum(ours in known[word] for word, ours in zip(words, hub.translate(words, beam=1), strict=True))
    assert right >= 0.6 * len(words)


def test_the_guide_looks_inside():
    names: dict = {}
    exec(guide.example("depth.md", "recorded_states"), names)
    assert [state.shape[-1] for state in names["states"]["encoder.loop"]] == [128] * 4
    assert [weights.shape[1] for weights in names["attention"]["encoder.loop"]] == [4] * 4
    assert names["hub"].translate("euphemistic") != "Y UW F AH M IH S T IH K"  # which takes all passes


@pytest.mark.parametrize(("folder", "data"), [("ringformer_small.missing", "."), (str(WEIGHTS / NAMES[0]), "nodata")])
def test_a_folder_that_does_not_exist_is_named(folder, data):
    missing = folder if data == "." else data
    with pytest.raises(FileNotFoundError, match=f"^{missing}: no such folder or archive"):
        RingFormer.from_pretrained(folder, data_name_or_path=data)


def test_an_argument_that_is_no_option_is_rejected():
    """fairseq ignores it. Options of segmentations are none of the model's."""
    known = dict(norm_eps=1e-5, bpe_codes="codes", moses_no_escape=True, cpu=True, generation_args={"beam": 2})
    RingFormer.from_pretrained(NAMES[0], **known)
    with pytest.raises(ValueError, match="^decoder_layer: not an option of ringformer_small$"):
        RingFormer.from_pretrained(NAMES[0], **known, decoder_layer=2)


def test_an_argument_of_a_call_that_is_no_option_is_rejected():
    """fairseq ignores it."""
    hub = RingFormer.from_pretrained(NAMES[0])
    assert hub.translate("word", beam=2, lenpen=0.5, max_len_a=0, max_len_b=2, left_pad_source=True) == "W ER"
    with pytest.raises(ValueError, match="^max_len=2: not an option of a search"):
        hub.translate("word", max_len=2)
    with pytest.raises(ValueError, match="^nbest=2: not an option of a search"):  # but of a command
        hub.translate("word", nbest=2)
    with pytest.raises(ValueError, match="^num_beams=2: not an option of a search"):
        hub.generate(hub.encode("word"), num_beams=2)


@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_small_and_tell_no_path(name):
    state = load_safely(WEIGHTS / name / "model.pt")
    assert {tensor.dtype for tensor in state["model"].values() if tensor.is_floating_point()} == {torch.float16}
    assert sum(path.stat().st_size for path in (WEIGHTS / name).iterdir()) < 1.5e6
    for path in WEIGHTS.joinpath(name).iterdir():
        if path.suffix != ".md":
            assert not re.search(rb"/(checkpoints|bin|pronounce|train\.)", path.read_bytes()), path
