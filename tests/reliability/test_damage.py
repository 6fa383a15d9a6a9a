"""Whichever bit of a checkpoint is wrong, looking for damage and for unpacked sizes ends without another error."""

import contextlib

import pytest
import torch

import fairseq_repairs.files
import recurrence.files


@pytest.mark.parametrize(("module", "unpacks"), [(recurrence.files, OSError), (fairseq_repairs.files, ValueError)])
def test_no_flipped_bit_breaks_the_search_for_damage(module, unpacks, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"weight": torch.ones(2)}, path)
    whole = path.read_bytes()
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        module.damage(path)
        with contextlib.suppress(unpacks):
            module.require_plain(path)
