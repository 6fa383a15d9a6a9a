"""Hugging Face tokenizers from fairseq's dictionary and the sentencepiece model that segmented the text."""

from pathlib import Path

from fairseq.data import Dictionary


def tokenizer(dictionary: Dictionary, pieces: Path | None, template: str):
    """A `tokenizers.Tokenizer` whose token ids are the dictionary's indices.

    Args:
        dictionary: fairseq's dictionary.
        pieces: the sentencepiece model that segmented the text; None if it was split at spaces.
        template: the special tokens around a text `$A`, such as `$A </s>`.

    Raises:
        ValueError: if the sentencepiece model is neither BPE nor unigram.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    ids = {dictionary[index]: index for index in range(len(dictionary))}
    unknown, end = dictionary[dictionary.unk()], dictionary[dictionary.eos()]
    if pieces is None:
        tokenizer = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unknown))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        tokenizer = tokenizers.Tokenizer(_model_of_pieces(ids, unknown, pieces))
        steps = [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=f"{template} {template.replace('$A', '$B')}", special_tokens=[(end, dictionary.eos())]
    )
    special = (dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk())
    tokenizer.add_special_tokens([dictionary[index] for index in special])
    return tokenizer


def _model_of_pieces(ids: dict[str, int], unknown: str, pieces: Path):
    """A sentencepiece model's segmentation with the dictionary's numbering.

    A piece that never occurred in the training text is an unknown symbol in fairseq. Here, a BPE model gives it an id
    beyond the embedding, which the model rejects; a unigram model segments it into known pieces.

    Raises:
        ValueError: if the sentencepiece model is neither BPE nor unigram.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto
    from tokenizers import models

    proto = ModelProto()
    proto.ParseFromString(pieces.read_bytes())
    scores = {piece.piece: piece.score for piece in proto.pieces}
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        worst = min(scores.values()) - 10
        ordered = sorted(ids, key=ids.get)
        return models.Unigram([(piece, scores.get(piece, worst)) for piece in ordered], unk_id=ids[unknown])
    if proto.trainer_spec.model_type != proto.trainer_spec.BPE:
        raise ValueError(f"--sentencepiece-model={pieces}: must be of type bpe or unigram")
    # Intermediate pieces of a merge may not be in the dictionary; they are numbered after its symbols.
    absent = sorted(set(scores) - set(ids))
    all_ids = {**ids, **{piece: len(ids) + offset for offset, piece in enumerate(absent)}}
    merges = []
    for piece in scores:
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((-scores[piece], all_ids[left], all_ids[right], left, right))
    return models.BPE(all_ids, [(left, right) for *_, left, right in sorted(merges)], unk_token=unknown)
