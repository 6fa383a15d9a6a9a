"""fairseq's dictionary, and the sentencepiece model before it, as a tokenizer of Hugging Face's library."""

from pathlib import Path

from fairseq.data import Dictionary


def tokenizer(words: Dictionary, pieces: Path | None, template: str):
    """A tokenizer of Hugging Face's library.

    Args:
        words: its numbers.
        pieces: the sentencepiece model that segmented the text; None where words stand between blanks.
        template: what stands around a text `$A`, such as `$A </s>`.

    Raises:
        ValueError: the pieces are of another kind than BPE and unigram.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    numbers = {words[index]: index for index in range(len(words))}
    unknown, end = words[words.unk()], words[words.eos()]
    if pieces is None:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(numbers, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = tokenizers.Tokenizer(_model_of_pieces(numbers, unknown, pieces))
        steps = [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} {template.replace('$A', '$B')}", special_tokens=[(end, words.eos())]
    )
    tokenizer.add_special_tokens([words[index] for index in (words.bos(), words.pad(), words.eos(), words.unk())])
    return tokenizer


def renumbered(words: Dictionary, pieces: Path) -> bytes | None:
    """A sentencepiece model of type BPE, numbered as the dictionary is, for llama.cpp's converter; of other types None.

    Pieces that the training text never gave, and to which a longer one may lead, are numbered behind the dictionary.
    llama.cpp puts pieces together by their scores, as a BPE model does, and a unigram model does not.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    proto = ModelProto()
    proto.ParseFromString(pieces.read_bytes())
    spec, kind = proto.trainer_spec, ModelProto.SentencePiece
    if spec.model_type != spec.BPE:
        return None
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == kind.NORMAL}
    kinds = {words.unk(): kind.UNKNOWN, **dict.fromkeys((words.bos(), words.pad(), words.eos()), kind.CONTROL)}
    symbols = [words[index] for index in range(len(words))]
    del proto.pieces[:]
    for index, symbol in enumerate([*symbols, *sorted(set(scores) - set(symbols))]):
        usual = kind.NORMAL if symbol in scores else kind.UNUSED
        proto.pieces.add(piece=symbol, score=scores.get(symbol, 0.0), type=kinds.get(index, usual))
    for name in ("unk", "bos", "eos", "pad"):
        which = getattr(words, name)()
        setattr(spec, f"{name}_id", which)
        setattr(spec, f"{name}_piece", words[which])
    spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString()


def _model_of_pieces(numbers: dict[str, int], unknown: str, pieces: Path):
    """A sentencepiece model's segmentation, its pieces numbered as the dictionary numbers them.

    A piece that the training text never gave is unknown to fairseq. Here it has a number behind the model's symbols,
    which the model refuses (a BPE model), or its parts are read (a unigram model).
    """
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import models

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(pieces.read_bytes())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    scores = {processor.id_to_piece(i): processor.get_score(i) for i in range(processor.get_piece_size())}
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        worst = min(scores.values()) - 10
        ordered = sorted(numbers, key=numbers.get)
        return models.Unigram([(piece, scores.get(piece, worst)) for piece in ordered], unk_id=numbers[unknown])
    if proto.trainer_spec.model_type != proto.trainer_spec.BPE:
        raise ValueError(f"--sentencepiece-model={pieces}: must be of type bpe or unigram")
    # The steps to a piece may be no symbols of the dictionary; they are numbered behind them.
    every = {**numbers, **{piece: len(numbers) + i for i, piece in enumerate(sorted(set(scores) - set(numbers)))}}
    merges = [
        (-scores[piece], every[piece[:cut]], every[piece[cut:]], piece[:cut], piece[cut:])
        for piece in scores
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return models.BPE(every, [(left, right) for *_, left, right in sorted(merges)], unk_token=unknown)
