"""Steps of export.sh that neither fairseq's nor CTranslate2's tools provide.

python export.py apart unshared.pt apart.pt             write a copy in which no two layers are equal
python export.py translate MODEL_FOLDER SOURCE_PIECES   decode with CTranslate2, in the format of fairseq-generate
python export.py report RUN_FOLDER EXPORT_FOLDER        print a table of sizes and scores
"""

import argparse
import json
from pathlib import Path

import torch

torch.serialization.add_safe_globals([argparse.Namespace])
TYPES = ("float32", "int8")


def apart(source: Path, target: Path) -> None:
    """Scales and shifts each layer by a different amount (1 %, 2 %, ...), so that no two can share storage."""
    state = torch.load(source, weights_only=True)
    for key, tensor in state["model"].items():
        if ".layers." in key:
            state["model"][key] = tensor * (1 + (1 + int(key.split(".")[2])) / 100) + 1e-3
    torch.save(state, target)


def translate(folder: Path, source: Path) -> None:
    """Prints one hypothesis per sentence, with beam 5 and the length limits of the other decodings."""
    import ctranslate2

    translator = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=1)
    lines = [line.split() for line in source.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    longest = int(1.5 * (1 + max(map(len, lines)))) + 10
    results = translator.translate_batch(
        lines, beam_size=5, max_batch_size=4096, batch_type="tokens", max_decoding_length=longest, return_scores=True
    )
    for number, result in enumerate(results):
        text = "".join(result.hypotheses[0]).replace("\u2581", " ").strip()
        print(f"D-{number}\t{result.scores[0]}\t{text}")


def report(run: Path, export: Path) -> None:
    """Prints a Markdown table of stored megabytes and BLEU."""
    weights = torch.load(run / "average.pt", map_location="cpu", weights_only=True)["model"]
    stored = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in weights.values()}
    scores = {name: json.loads((export / f"{name}.json").read_text())["bleu"] for name in ("fairseq", *TYPES)}
    before = json.loads((run / "scores.json").read_text())["bleu"]
    rows = [("looped weights, float32", sum(stored.values()), before)]
    rows.append(("unshared checkpoint of fairseq", (export / "unshared.pt").stat().st_size, scores["fairseq"]))
    for kind in TYPES:
        rows.append((f"CTranslate2, {kind}", (export / f"unshared-{kind}" / "model.bin").stat().st_size, scores[kind]))
    for kind in TYPES:
        size = (export / f"apart-{kind}" / "model.bin").stat().st_size
        rows.append((f"CTranslate2, {kind}, if no layers were equal", size, None))
    print("| | megabytes | BLEU |\n|---|---:|---:|")
    for name, size, bleu in rows:
        print(f"| {name} | {size / 1e6:.1f} | {'' if bleu is None else f'{bleu:.2f}'} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("apart", "translate", "report"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    args = parser.parse_args()
    {"apart": apart, "translate": translate, "report": report}[args.command](args.first, args.second)


if __name__ == "__main__":
    main()
