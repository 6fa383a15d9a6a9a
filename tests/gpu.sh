#!/usr/bin/env bash
# Everything that a GPU can show, in about 10 minutes and without a network: `make gpu`, or tests/gpu.sh on a machine that
# has torch, timm, pytest with xdist, and fairseq installed. A stage that fails or runs too long does not stop those behind
# it; the table at the end says how each went, and the exit status is the number of those that failed. Trainings run four
# at a time. Speeds are recipes/gpu.sh's.
#
#   OUT      where logs and checkpoints are written (default out/gpu)
#   UPDATES  updates of each training (default 100)
#   STAGES   a pattern of stages to run (default all), as in STAGES='train-*'
#   BUDGET   seconds for everything (default 590): what is not reached by then is left out
#   PYTHON   the interpreter (default python3)
set -uo pipefail

cd "$(dirname "$0")/.." || exit 1
OUT=${OUT:-out/gpu} UPDATES=${UPDATES:-100} STAGES=${STAGES:-*} BUDGET=${BUDGET:-590} PYTHON=${PYTHON:-python3}
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export PYTHONWARNINGS=${PYTHONWARNINGS-ignore::FutureWarning,ignore::UserWarning}
mkdir -p "$OUT"
: >"$OUT/summary.txt"

# stage NAME SECONDS COMMAND...: run it under a time limit, its output in OUT/NAME.log, and note how it ended.
stage() {
    local name=$1 limit=$2 begin=$SECONDS status
    shift 2
    # shellcheck disable=SC2053 (STAGES is a pattern)
    [[ $name == $STAGES ]] || return 0
    printf '== %s\n' "$name"
    if [ $((BUDGET - SECONDS)) -lt "$limit" ]; then limit=$((BUDGET - SECONDS)); fi
    if [ "$limit" -le 0 ]; then
        printf '%-34s         not reached\n' "$name" | tee -a "$OUT/summary.txt"
        return 0
    fi
    timeout "$limit" "$@" >"$OUT/$name.log" 2>&1
    status=$?
    case $status in
    0) verdict=passed ;;
    124) verdict="stopped after $limit s" ;;
    *) verdict="failed ($status): $(grep -v '^ *$' "$OUT/$name.log" | tail -n 1 | cut -c 1-120)" ;;
    esac
    printf '%-34s %4d s  %s\n' "$name" $((SECONDS - begin)) "$verdict" | tee -a "$OUT/summary.txt"
}

# Reversed random digits: a corpus that needs no file and no network.
corpus() {
    "$PYTHON" - "$OUT/corpus" <<'PYTHON'
import random
import sys
from pathlib import Path

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
draw = random.Random(1)
for name, count in {"train": 20000, "valid": 500, "test": 200}.items():
    lines = [[str(draw.randrange(100)) for _ in range(draw.randint(5, 40))] for _ in range(count)]
    (folder / f"{name}.a").write_text("".join(" ".join(line) + "\n" for line in lines))
    (folder / f"{name}.b").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))
PYTHON
    rm -rf "$OUT/bin"
    "$PYTHON" -m fairseq_cli.preprocess --user-dir fairseq_plugin --source-lang a --target-lang b --joined-dictionary \
        --trainpref "$OUT/corpus/train" --validpref "$OUT/corpus/valid" --testpref "$OUT/corpus/test" --destdir "$OUT/bin"
}

# translate NAME ARCH [flags of fairseq-train]: train, then decode in half precision.
translate() {
    local run=$OUT/$1
    stage "train-$1" "${LIMIT:-90}" "$PYTHON" -m fairseq_cli.train "$OUT/bin" --user-dir fairseq_plugin --arch "$2" --save-dir "$run" \
        --share-all-embeddings --optimizer adam --adam-betas "(0.9, 0.98)" --lr 5e-4 --lr-scheduler inverse_sqrt \
        --warmup-updates 50 --clip-norm 1.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
        --max-tokens 4000 --max-update "$UPDATES" --no-epoch-checkpoints --log-interval 20 "${@:3}"
    stage "decode-$1" 60 "$PYTHON" -m fairseq_cli.generate "$OUT/bin" --user-dir fairseq_plugin \
        --path "$run/checkpoint_last.pt" --gen-subset test --beam 4 --max-len-b 50 --fp16
    rm -rf "$run"
}

# image NAME MODEL [options of train_image.py]: an epoch of small pictures, enlarged.
image() {
    stage "image-$1" 150 "$PYTHON" recipes/train_image.py "$OUT/images" --model "$2" --output "$OUT/image-$1" --epochs 1 \
        --batch-size 16 --img-size 224 --warmup-epochs 0 --workers 2 "${@:3}"
    rm -rf "$OUT/image-$1"
}

images() {
    rm -rf "$OUT/images"
    "$PYTHON" -c "import pathlib, tests.support.image_training as made; made.write_images(pathlib.Path('$OUT/images'))"
}

export -f corpus images
export OUT PYTHON
stage environment 60 "$PYTHON" -m torch.utils.collect_env
stage tests 240 "$PYTHON" -m pytest -q -n 4 -m gpu -p no:cacheprovider tests/test_gpu.py
stage corpus 60 bash -c corpus
stage images 60 bash -c images
translate fp32 ringformer_base &
translate fp16 ringformer_base --fp16 &
translate amp ringformer_base --amp &
image amp ringformer_vit_small --amp bfloat16 &
wait
image compile sret_t --amp bfloat16 --compile &
LIMIT=150 translate compile ringformer_base --compile --fp16 &
translate bf16 ringformer_base --bf16 &
translate memory-efficient-fp16 ringformer_base --memory-efficient-fp16 &
wait
translate admin cycle_rev --init admin --fp16 &
translate checkpointing ringformer_base --checkpoint-activations --fp16 &
wait

echo
cat "$OUT/summary.txt"
exit "$(grep -cE ' s  (failed|stopped)' "$OUT/summary.txt")"
