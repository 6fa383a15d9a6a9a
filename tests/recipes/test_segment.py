"""recipes/data/segment.py names what is wrong with its texts and models."""

import pytest

from tests.support import cli

SEGMENT = cli.REPOSITORY / "recipes" / "data" / "segment.py"


@pytest.fixture
def text(tmp_path):
    (path := tmp_path / "text").write_text("one two three\n" * 20, encoding="utf-8")
    return path


def test_fewer_pieces_than_asked_for_and_texts_of_other_data_are_told(text, tmp_path):
    model, other = tmp_path / "p.model", tmp_path / "other"
    other.write_text("один два\n", encoding="utf-8")
    said = cli.python(SEGMENT, "train", model, "--pieces", "60000", text)
    assert "pieces, not 60000: the text has no more" in said
    assert "other" not in cli.python(SEGMENT, "encode", model, text, tmp_path / "pieces")
    assert f"{other}: {model} does not know" in cli.python(SEGMENT, "encode", model, other, tmp_path / "pieces")


def test_pieces_are_learnt_from_lines_of_any_length(text, tmp_path):
    """sentencepiece would leave out those of over 4,192 bytes."""
    (long := tmp_path / "long").write_text("γάτα " * 560, encoding="utf-8")  # 5,040 bytes
    model = tmp_path / "p.model"
    cli.python(SEGMENT, "train", model, "--pieces", "60", text, long)
    assert cli.python(SEGMENT, "encode", model, long, tmp_path / "pieces") == ""  # knows all pieces


def test_other_encodings_and_missing_folders_are_named(text, tmp_path):
    missing = tmp_path / "missing" / "p.model"
    said = cli.python(SEGMENT, "train", missing, "--pieces", "20", text, fails=True)
    assert f"{missing.parent}: no such folder" in said
    text.write_bytes(b"one\nf\xfcnf\n")
    said = cli.python(SEGMENT, "train", tmp_path / "p.model", "--pieces", "20", text, fails=True)
    assert f"{text}, line 2: must be UTF-8" in said


def test_other_names_of_models_and_empty_texts_are_rejected(text, tmp_path):
    """sentencepiece appends .model, and its error about no text names none."""
    said = cli.python(SEGMENT, "train", tmp_path / "p.v2", "--pieces", "20", text, fails=True)
    assert f"{tmp_path}/p.v2: must end in .model" in said
    text.write_text("\n \n", encoding="utf-8")
    said = cli.python(SEGMENT, "train", tmp_path / "p.model", "--pieces", "20", text, fails=True)
    assert f"{text}: must hold text" in said
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
