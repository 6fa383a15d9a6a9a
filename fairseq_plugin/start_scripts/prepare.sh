#!/usr/bin/env bash
# Cuts the lines of text/ into pieces and numbers them. This has already run. If you change text/, run it again, and remove
# checkpoints/*.pt, as a model knows only the pieces of its training.
set -euo pipefail
export PYTHONUTF8=1 # all texts are UTF-8, whatever the locale is
CDPATH= cd "$(dirname "$0")"
mkdir -p pieces checkpoints

# The model of the pieces has the name under which fairseq's hub interface looks for it, beside the checkpoints.
python - <<'END'
import sentencepiece

sentencepiece.SentencePieceTrainer.train(
    input="%{trained}",
    model_prefix="checkpoints/sentencepiece.bpe",
    model_type="bpe",
    vocab_size=%{pieces},
    hard_vocab_limit=False,
    character_coverage=1.0,
    max_sentence_length=%{longest},  # bytes; longer lines would be silently left out
    minloglevel=1,
)
model = sentencepiece.SentencePieceProcessor(model_file="checkpoints/sentencepiece.bpe.model")
for name in "%{names}".split():
    with open(f"text/{name}", encoding="utf-8") as text, open(f"pieces/{name}", "w", encoding="utf-8") as pieces:
        for line in text:
            print(*model.encode(line.strip(), out_type=str), file=pieces)
END

rm -f data-bin/dict.*txt  # which fairseq-preprocess would not replace
fairseq-preprocess %{sides} --user-dir "$(python -m fairseq_plugin)" --destdir data-bin \
    --trainpref pieces/train --validpref pieces/valid --testpref pieces/test
