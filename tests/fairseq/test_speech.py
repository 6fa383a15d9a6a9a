"""What models for speech read; tests/fairseq/test_convert.py compares them with fairseq's own."""

import pytest
import torch

from tests.support import models, speech


def test_longest_utterances_are_the_tasks():
    on = speech.task(models.dictionary(models.TARGET_SYMBOLS), max_source_positions=50, max_target_positions=9)
    assert models.tiny("s2t_cycle", on=on).max_positions() == (50, 9)


def test_features_of_another_width_are_rejected_by_name():
    source, lengths, target = models.inputs("s2t_cycle")
    wide = torch.cat([source, source], dim=2)
    with pytest.raises(
        ValueError, match="^12 features per frame: must be 6, which is input_feat_per_channel x input_ch"
    ):
        models.tiny("s2t_cycle")(wide, lengths, target)


def test_features_are_read_in_the_type_of_the_model():
    """fairseq-generate --fp16 only casts the model."""
    model, (frames, lengths, target) = models.tiny("s2t_cycle").half(), models.inputs("s2t_cycle")
    assert torch.equal(model(frames.float(), lengths, target)[0], model(frames.half(), lengths, target)[0])
