"""Models as folders of transformers: its own classes give the same logits and number the same tokens."""

import pytest
import sentencepiece
import torch

transformers = pytest.importorskip("transformers")

from fairseq.data import Dictionary  # noqa: E402

from fairseq_plugin import convert  # noqa: E402
from fairseq_plugin.export.hugging_face import converted, tokenizer  # noqa: E402
from fairseq_plugin.models.ringformer import WEIGHTS  # noqa: E402
from tests.fairseq.test_convert import REJECTED  # noqa: E402
from tests.support import language, models  # noqa: E402

TEXT = ["the old man looked at the sea", "she sells sea shells on the sea shore", "the man sells the old sea shells"]


@pytest.fixture(scope="module", params=["bpe", "unigram", "words"])
def corpus(request, tmp_path_factory):
    """The dictionary of a small corpus, its file, and the sentencepiece model, if one segmented it."""
    folder = tmp_path_factory.mktemp(request.param)
    lines, model = TEXT, None
    if request.param != "words":
        (folder / "text").write_text("\n".join(TEXT * 20) + "\n")
        model = folder / "pieces.model"
        settings = dict(vocab_size=40, character_coverage=1.0, hard_vocab_limit=False, minloglevel=2)
        names = dict(input=str(folder / "text"), model_prefix=str(model.with_suffix("")), model_type=request.param)
        sentencepiece.SentencePieceTrainer.train(**names, **settings)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        lines = [" ".join(processor.encode(line, out_type=str)) for line in TEXT]
    words = Dictionary()
    for line in lines:
        words.encode_line(line)
    words.finalize()
    words.save(str(folder / "dict.txt"))
    return words, folder / "dict.txt", model, lines


def trained(folder, kind="bpe", **settings):
    """The file of a sentencepiece model of :data:`TAGGED`."""
    (folder / "text").write_text("\n".join(TAGGED * 20) + "\n")
    settings = dict(vocab_size=320 if "byte_fallback" in settings else 50, **settings)
    names = dict(input=str(folder / "text"), model_prefix=str(folder / "pieces"), model_type=kind)
    common = dict(character_coverage=1.0, hard_vocab_limit=False, minloglevel=2)
    sentencepiece.SentencePieceTrainer.train(**names, **common, **settings)
    return folder / "pieces.model"


TAGGED = [f"<de> {line}" for line in TEXT]
UNTIDY = [
    *TAGGED,
    "the\told man",
    "\tsea\t",
    "\ufeffthe sea",
    "the\u200b sea\u200bshells",
    "the\u3000sea",
    "  the  old   man ",
    "The ﬁsh ｓells Shells",
    "sea 日本 日\t本sea…",
    "<de><de>sea<de> ",
    "",
    "  ",
]
RULES = {
    "sentencepiece's own": {},
    "nmt_nfkc_cf": dict(normalization_rule_name="nmt_nfkc_cf"),
    "identity": dict(normalization_rule_name="identity"),
    "no blank before a text": dict(add_dummy_prefix=False),
    "all blanks": dict(remove_extra_whitespaces=False),
    "pieces of several words": dict(split_by_whitespace=False),
    "user-defined symbols": dict(user_defined_symbols=["<de>", "ell"]),
    "bytes": dict(byte_fallback=True),
}


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_text_has_the_pieces_that_fairseq_gets_from_sentencepiece(kind, rules, tmp_path):
    model = trained(tmp_path, kind, **rules)
    processor, words = sentencepiece.SentencePieceProcessor(model_file=str(model)), Dictionary()
    for number in range(3, len(processor)):  # after the special ones
        words.add_symbol(processor.id_to_piece(number))
    written = tokenizer(words, model, "$A </s>")
    for line in UNTIDY:
        pieces = " ".join(processor.encode(line, out_type=str)).split()  # as fairseq reads them
        ids = words.encode_line(" ".join(pieces), add_if_not_exist=False)
        assert written.encode(line).ids == ids.tolist()
        if words.unk() not in ids:
            assert written.decode(ids.tolist()) == processor.decode(pieces)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (dict(treat_whitespace_as_suffix=True), "must be trained without treat_whitespace_as_suffix"),
        (dict(user_defined_symbols=["<DE>"], normalization_rule_name="nmt_nfkc_cf"), "user-defined symbol '<DE>'"),
    ],
)
def test_pieces_that_no_tokenizer_makes_are_refused(rules, message, tmp_path, rejected):
    model, folder = trained(tmp_path, **rules), tmp_path / "folder"
    words = ("hf", WEIGHTS / "ringformer_small.pronounce" / "model.pt", folder, "--sentencepiece-model", model)
    assert f"--sentencepiece-model={model}: {message}" in rejected(convert.main, *words)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("flags", "at_start"),
    [([], False), (["--block-loops", "2"], True)],
    ids=["reuse map", "block loops, a symbol at the start"],
)
def test_llama_gives_the_same_logits(corpus, flags, at_start, tmp_path):
    words, dictionary, pieces, lines = corpus
    task = language.task()
    task.dictionary = task.output_dictionary = words
    model = models.tiny("ilr_small", "--position", "rope", *flags, on=task).float()
    args = models.saved_options("ilr_small", "--position", "rope", *flags)
    args.add_bos_token = at_start
    del args.post_norm  # which 0.1.0 did not have
    torch.save({"args": args, "model": model.state_dict(), "cfg": None}, tmp_path / "ilr.pt")
    command = ["hf", tmp_path / "ilr.pt", tmp_path / "llama", "--dictionary", dictionary]
    convert.main([*map(str, command), *(["--sentencepiece-model", str(pieces)] if pieces else [])])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "llama")
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    assert len(llama.model.layers) == model.decoder.stack.loop.passes
    for raw, segmented in zip(TEXT, lines):
        tokens = words.encode_line(segmented, add_if_not_exist=False, append_eos=False).long()
        tokens = torch.cat([torch.tensor([words.bos() if at_start else words.eos()]), tokens])[None]
        assert tokenizer(raw)["input_ids"] == tokens[0].tolist()
        assert tokenizer.decode(tokens[0], skip_special_tokens=True) == raw
        with torch.no_grad():
            torch.testing.assert_close(llama(tokens).logits, model(tokens)[0], rtol=1e-5, atol=1e-5)
    made = llama.generate(tokens, max_new_tokens=5, do_sample=False)
    assert made.size(1) > tokens.size(1)


CLOSE = dict(rtol=1e-5, atol=1e-5)


def with_options(arch, *flags, on=None):
    """A tiny model, and its options as a checkpoint has them."""
    return models.tiny(arch, *flags, on=on).float(), models.saved_options(arch, *flags)


def logits_of(fsmt, source, target, pad):
    with torch.no_grad():
        return fsmt(input_ids=source, attention_mask=source.ne(pad), decoder_input_ids=target, use_cache=False).logits


@pytest.mark.parametrize("flags", [[], ["--share-all-embeddings"], ["--init", "admin"]], ids=["apart", "tied", "admin"])
@models.every_translation_model
def test_every_translation_model_is_an_fsmt_or_rejected(arch, flags):
    if arch in REJECTED:
        with pytest.raises(ValueError, match=f"--arch {arch}: .*{REJECTED[arch]}"):
            converted(*with_options(arch))
        return
    symbols = (23, 23) if "--share-all-embeddings" in flags else (19, 23)
    model, args = with_options(arch, *flags, on=models.task(*symbols))
    config, weights = converted(model, args)
    fsmt = transformers.FSMTForConditionalGeneration(transformers.FSMTConfig(**config)).eval()
    missing, unexpected = fsmt.load_state_dict(weights, strict=False)
    assert not unexpected
    tied = {"model.encoder.embed_tokens.weight", "model.decoder.output_projection.weight"}
    assert set(missing) == tied - set(weights)
    for left_pad in (False, True):
        source, lengths, target = models.batch(left_pad=left_pad, symbols=symbols)
        pad = model.decoder.dictionary.pad()
        keep = target.ne(pad)
        with torch.no_grad():
            expected = model(source, lengths, target)[0]
        torch.testing.assert_close(logits_of(fsmt, source, target, pad)[keep], expected[keep], **CLOSE)


@pytest.mark.parametrize(
    ("arch", "flags", "message"),
    [
        ("ilr_small", ["--position", "alibi"], "--position=alibi: must be rotary"),
        ("ilr_small", ["--post-norm"], "--post-norm: the layers of LlamaForCausalLM"),
        ("ilr_small", ["--position", "rope", "--inject-embedding"], "--inject-embedding: a layer of LlamaForCausalLM"),
        ("recurrent_lm", [], "--arch recurrent_lm: must be ilr_small, ilr_large or a translation model"),
        ("cycle", models.VARIANTS["pre-norm"], "--encoder-normalize-before: not supported by FSMT"),
        ("cycle", ["--layernorm-embedding"], "--layernorm-embedding: not supported by FSMTForConditionalGeneration"),
        ("cycle", ["--activation-fn", "tanh"], "--activation-fn=tanh: must be relu or gelu"),
    ],
)
def test_unsupported_models_and_options_are_rejected(arch, flags, message):
    with pytest.raises(ValueError, match=message):
        converted(*with_options(arch, *flags))


def test_scaled_embeddings_are_rejected():
    model, args = with_options("ilr_small")
    model.decoder.inputs.scale = 4.0
    with pytest.raises(ValueError, match="no_scale_embedding=False: LlamaForCausalLM does not scale its embedding"):
        converted(model, args)


def test_fsmt_has_as_many_positions_on_either_side():
    model, args = with_options("cycle")
    args.max_target_positions = 9
    with pytest.raises(ValueError, match="--max-target-positions=9: must be the source's, 1024"):
        converted(model, args)


@pytest.mark.parametrize(("arch", "joint"), [("ringformer_tiny", True), ("cycle", False)])
def test_a_folder_translates_as_fairseq_does(corpus, arch, joint, tmp_path):
    words, dictionary, pieces, lines = corpus
    data = tmp_path / "data"
    data.mkdir()
    target = words
    if not joint:
        target = Dictionary.load(str(dictionary))
        target.add_symbol("beyond")
    words.save(str(data / "dict.de.txt"))
    target.save(str(data / "dict.en.txt"))
    task = models.task(19, 19)
    task.src_dict, task.tgt_dict = words, target
    model, args = with_options(arch, on=task)
    args.source_lang, args.target_lang = "de", "en"
    torch.save({"args": args, "model": model.state_dict(), "cfg": None}, tmp_path / "in.pt")
    command = ["hf", tmp_path / "in.pt", tmp_path / "fsmt", "--dictionary", data]
    convert.main([*map(str, command), *(["--sentencepiece-model", str(pieces)] if pieces else [])])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "fsmt")
    assert (tmp_path / "fsmt" / "target").is_dir() != joint
    if not joint:
        assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "fsmt" / "target")) >= len(target)
    fsmt, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "fsmt", output_loading_info=True)
    assert not report["missing_keys"]
    assert fsmt.generation_config.early_stopping is True  # fairseq's search ends with as many hypotheses as beams
    rows = [words.encode_line(line, add_if_not_exist=False).long() for line in lines]
    batch = tokenizer(TEXT, padding=True, return_tensors="pt")
    for row, ids, mask in zip(rows, batch["input_ids"], batch["attention_mask"]):
        assert ids[mask.bool()].tolist() == row.tolist()
    previous = torch.tensor([[target.eos(), 5, 6, 7]] * len(TEXT))
    lengths = batch["attention_mask"].sum(1)
    with torch.no_grad():
        expected = model(batch["input_ids"], lengths, previous)[0]
    torch.testing.assert_close(logits_of(fsmt.eval(), batch["input_ids"], previous, words.pad()), expected, **CLOSE)
    greedy = fsmt.generate(**batch, num_beams=1, max_new_tokens=4)
    assert greedy[:, 0].eq(target.eos()).all()
    assert greedy[:, 1].tolist() == expected[:, 0].argmax(1).tolist()


def test_the_model_of_the_package_pronounces_with_the_dictionaries_beside_it(tmp_path):
    folder = tmp_path / "pronounce"
    convert.main(["hf", str(WEIGHTS / "ringformer_small.pronounce" / "model.pt"), str(folder)])
    letters, phonemes = map(transformers.AutoTokenizer.from_pretrained, (folder, folder / "target"))
    fsmt = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokens = fsmt.generate(**letters("e u p h e m i s t i c", return_tensors="pt"), num_beams=1)
    assert phonemes.decode(tokens[0], skip_special_tokens=True) == "Y UW F AH M IH S T IH K"


@pytest.mark.parametrize(
    ("option", "data", "message"),
    [
        ("--sentencepiece-model", b"four 1", "not a sentencepiece model"),
        ("--dictionary", b"four", "Incorrect dictionary format"),
        ("--dictionary", b"\xff 1", "Incorrect encoding detected"),
    ],
)
def test_files_of_another_kind_are_named(option, data, message, tmp_path, rejected):
    """Neither sentencepiece's error nor one of fairseq's two names the file."""
    given, folder = tmp_path / "given", tmp_path / "folder"
    given.write_bytes(data)
    words = ("hf", WEIGHTS / "ringformer_small.pronounce" / "model.pt", folder, option, given)
    assert f"{option}={given}: {message}" in rejected(convert.main, *words)
    assert not folder.exists()
