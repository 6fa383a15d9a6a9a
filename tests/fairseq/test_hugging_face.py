"""Language models as folders of transformers: its own classes give the same logits and number the same tokens."""

import pytest
import sentencepiece
import torch

transformers = pytest.importorskip("transformers")

from fairseq.data import Dictionary  # noqa: E402

from fairseq_plugin import convert  # noqa: E402
from tests.support import language  # noqa: E402

TEXT = ["the old man looked at the sea", "she sells sea shells on the sea shore", "the man sells the old sea shells"]


@pytest.fixture(scope="module", params=["bpe", "unigram", "words"])
def corpus(request, tmp_path_factory):
    """The dictionary of a small corpus, its file, and the sentencepiece model, if one segmented it."""
    folder = tmp_path_factory.mktemp(request.param)
    lines, model = TEXT, None
    if request.param != "words":
        (folder / "text").write_text("\n".join(TEXT * 20) + "\n")
        model = folder / "pieces.model"
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text"),
            model_prefix=str(model.with_suffix("")),
            vocab_size=40,
            model_type=request.param,
            character_coverage=1.0,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        lines = [" ".join(processor.encode(line, out_type=str)) for line in TEXT]
    words = Dictionary()
    for line in lines:
        words.encode_line(line)
    words.finalize()
    words.save(str(folder / "dict.txt"))
    return words, folder / "dict.txt", model, lines


def checkpoint(path, model, arch, *flags):
    args = language.options(arch, *language.tiny_flags(arch, *flags))
    args.tokens_per_sample = language.POSITIONS
    torch.save({"args": args, "model": model.state_dict(), "cfg": None}, path)


def build(words, *flags):
    model = language.tiny("ilr_small", *flags, on=task(words)).float()
    return model


def task(words):
    found = language.task()
    found.dictionary = found.output_dictionary = words
    return found


@pytest.mark.parametrize("flags", [[], ["--block-loops", "2"]], ids=["reuse map", "block loops"])
def test_llama_gives_the_same_logits(corpus, flags, tmp_path):
    words, dictionary, pieces, lines = corpus
    model = build(words, "--position", "rope", *flags)
    checkpoint(tmp_path / "ilr.pt", model, "ilr_small", "--position", "rope", *flags)
    command = ["hf", tmp_path / "ilr.pt", tmp_path / "llama", "--dictionary", dictionary]
    convert.main([*map(str, command), *(["--sentencepiece-model", str(pieces)] if pieces else [])])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "llama")
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    assert len(llama.model.layers) == model.decoder.stack.loop.passes
    for raw, segmented in zip(TEXT, lines):
        tokens = words.encode_line(segmented, add_if_not_exist=False, append_eos=False).long()
        tokens = torch.cat([torch.tensor([words.eos()]), tokens])[None]
        assert tokenizer(raw)["input_ids"] == tokens[0].tolist()
        assert tokenizer.decode(tokens[0], skip_special_tokens=True) == raw
        with torch.no_grad():
            torch.testing.assert_close(llama(tokens).logits, model(tokens)[0], rtol=1e-5, atol=1e-5)
    made = llama.generate(tokens, max_new_tokens=5, do_sample=False)
    assert made.size(1) > tokens.size(1)


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("ilr_small", ["--position", "alibi"], "--position=alibi: must be rope"),
        ("ilr_small", ["--position", "rope", "--inject-embedding"], "--inject-embedding: a layer of LlamaForCausalLM"),
        ("recurrent_lm", [], "--arch recurrent_lm: must be ilr_small or ilr_large"),
    ],
)
def test_what_llama_has_no_place_for_is_refused(arch, flags, message, tmp_path, capsys):
    words = language.task().dictionary
    words.save(str(tmp_path / "dict.txt"))
    checkpoint(tmp_path / "in.pt", language.tiny(arch, *flags).float(), arch, *flags)
    with pytest.raises(SystemExit):
        convert.main(["hf", str(tmp_path / "in.pt"), str(tmp_path / "out"), "--dictionary", str(tmp_path / "dict.txt")])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
