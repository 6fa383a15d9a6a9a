#!/usr/bin/env python3
"""Translates or continues text with a folder written by `python -m fairseq_plugin.convert onnx`.

Usage::

    python serve.py FOLDER [--beam 5] [--tokenized] < lines

This file needs onnxruntime and numpy, and sentencepiece where the folder has pieces and lines are raw text. It runs
without torch, fairseq and the rest of the project, and may be copied anywhere. The search is that of fairseq-generate:
the same tokens for the same model.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

MOST_BYTES = 1 << 28  # of model.json
LARGEST = 100_000  # size of a dimension in a model's state


class Model:
    """A translation or language model in a folder.

    Args:
        folder: written by `convert onnx`.
        threads: of onnxruntime; 0 for all cores.
    """

    def __init__(self, folder: str | Path, threads: int = 0):
        import onnxruntime

        folder = Path(folder)
        for file in folder.iterdir():
            if not (file.is_file() or file.is_dir()):
                raise ValueError(f"{file}: must be a file, not a pipe or a device")
        if (folder / "model.json").stat().st_size > MOST_BYTES:
            raise ValueError(f"{folder}/model.json: must have <= {MOST_BYTES:,} bytes")
        self.about = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        _check(self.about)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        names = ("encoder", "decoder") if self.about["translates"] else ("decoder",)
        files = {name: str(folder / f"{name}.onnx") for name in names}
        self.sessions = {
            name: onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            for name, file in files.items()
        }
        self.source, self.target = self.about["symbols"][0], self.about["symbols"][-1]
        self.numbers = {symbol: number for number, symbol in enumerate(self.source)}
        self.pad, self.eos, self.unk = (self.about[name] for name in ("pad", "eos", "unk"))
        self.pieces = None
        if self.about["pieces"]:
            self.pieces = folder / Path(self.about["pieces"]).name

    def encode(self, line: str, tokenized: bool = False) -> list[int]:
        """The numbers of a line's symbols, which are separated by spaces if it is tokenized, without an end."""
        words = line.split() if tokenized or self.pieces is None else self._processor().encode(line, out_type=str)
        return [self.numbers.get(word, self.unk) for word in words]

    def decode(self, numbers: Iterable[int], tokenized: bool = False) -> str:
        """The text of symbols, or the symbols themselves with spaces between them."""
        words = [self.target[number] for number in numbers]
        return " ".join(words) if tokenized or self.pieces is None else self._processor().decode(words)

    def _processor(self):
        if isinstance(self.pieces, Path):
            import sentencepiece

            self.pieces = sentencepiece.SentencePieceProcessor(str(self.pieces))
        return self.pieces

    def translate(self, lines: Sequence[str], beam: int = 5, tokenized: bool = False, batch: int = 32) -> list[str]:
        """The best translation of each line, or of a language model the most likely continuation."""
        encoded = [self.encode(line, tokenized) for line in lines]
        order = sorted(range(len(lines)), key=lambda index: len(encoded[index]))
        found: dict[int, str] = {}
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            if self.about["translates"]:
                texts = self.search([encoded[index] for index in chosen], beam)
            else:
                texts = [self.search([encoded[index]], beam)[0] for index in chosen]
            found.update(zip(chosen, (self.decode(text, tokenized) for text in texts)))
        return [found[index] for index in range(len(lines))]

    def search(
        self, texts: Sequence[Sequence[int]], beam: int, most: int = 200, penalty: float = 1.0
    ) -> list[list[int]]:
        """fairseq's beam search: the best output of each source text, or continuation of a single prompt.

        Args:
            texts: numbers of symbols, without the end of a text.
            beam: hypotheses of each.
            most: longest output, in symbols.
            penalty: scores are divided by length ** penalty.
        """
        rows, symbols = len(texts), len(self.target)
        feed, prompt = {}, [self.eos]
        if self.about["translates"]:
            longest = max(map(len, texts)) + 1
            padded = [[self.pad] * (longest - 1 - len(text)) + [*text, self.eos] for text in texts]
            source = np.array(padded, dtype=np.int64)
            (contexts,) = self.sessions["encoder"].run(None, {"source": source})
            feed = {"source": source.repeat(beam, 0), "contexts": contexts.repeat(beam, 1)}
        else:
            prompt += texts[0]
        most = min(most, self.about["longest"] - 1)
        state = self.first_state(rows * beam)
        for symbol in prompt[:-1]:
            state = self.step(np.full((rows * beam, 1), symbol), state, feed)[1]
        tokens = np.full((rows * beam, 1), prompt[-1])
        history: np.ndarray = np.zeros((rows * beam, 0), dtype=np.int64)
        total: np.ndarray = np.zeros((rows, beam), dtype=np.float32)
        ended: list[list[tuple[float, list[int]]]] = [[] for _ in texts]
        open_rows = list(range(rows))  # of the texts that are not finished
        for length in range(1, most + 2):
            scores, state = self.step(tokens, state, feed)
            scores[np.isnan(scores)] = -np.inf
            scores[:, self.pad] = -np.inf
            if length == 1:
                scores[:, self.eos] = -np.inf  # no output is empty
            if length == most + 1:
                scores[:, np.arange(symbols) != self.eos] = -np.inf
            scores = scores.reshape(len(open_rows), beam, symbols) + total[:, :, None]
            if length == 1:
                scores = scores[:, :1]  # all hypotheses are equal
            flat = scores.reshape(len(open_rows), -1)
            candidates = min(2 * beam, flat.shape[1] - 1)
            top = np.argpartition(-flat, candidates - 1, axis=1)[:, :candidates]
            top = np.take_along_axis(top, np.argsort(-np.take_along_axis(flat, top, 1), axis=1, kind="stable"), 1)
            values = np.take_along_axis(flat, top, 1)
            kept, places = [], []
            for place, row in enumerate(open_rows):
                going = []
                for rank, (score, choice) in enumerate(zip(values[place], top[place])):
                    parent, symbol = place * beam + choice // symbols, choice % symbols
                    if symbol != self.eos:
                        going.append((score, parent, symbol))
                    elif rank < beam and np.isfinite(score) and len(ended[row]) < beam:
                        ended[row].append((score / length**penalty, history[parent].tolist()))
                if len(ended[row]) < beam and length <= most:
                    kept += going[:beam]
                    places.append(place)
            if not places:
                break
            parents = np.array([parent for _, parent, _ in kept])
            tokens = np.array([[symbol] for _, _, symbol in kept], dtype=np.int64)
            total = np.array([score for score, _, _ in kept], dtype=np.float32).reshape(len(places), beam)
            history = np.concatenate([history[parents], tokens], axis=1)
            state = {name: values.take(parents, self.batch_dim(name)) for name, values in state.items()}
            if len(places) < len(open_rows):
                feed = {name: values.take(parents, self.batch_dim(name)) for name, values in feed.items()}
                open_rows = [open_rows[place] for place in places]
        return [max(texts, key=lambda one: one[0])[1] for texts in ended]

    def step(self, tokens: np.ndarray, state: dict, feed: dict) -> tuple[np.ndarray, dict]:
        """Log-probabilities of the next symbol, (B, V), and the state after tokens (B, 1)."""
        scores, *after = self.sessions["decoder"].run(None, {"tokens": tokens.astype(np.int64), **state, **feed})
        return scores, dict(zip(state, after))

    def first_state(self, batch: int) -> dict[str, np.ndarray]:
        """The state of a decoder that has read nothing."""
        sizes = {"batch": batch, "past": 0}
        return {
            name: np.zeros([sizes.get(size, size) for size in shape], dtype=self.about["types"][name])
            for name, shape in self.about["state"].items()
        }

    def batch_dim(self, name: str) -> int:
        """The dimension of the batch in an input of a step."""
        if name == "contexts":
            return 1
        return 0 if name == "source" else self.about["state"][name].index("batch")


def _check(about: dict) -> None:
    """Raises ValueError unless model.json holds what `convert onnx` writes, and no size beyond LARGEST."""
    symbols = about["symbols"]
    numbers = [about[name] for name in ("pad", "eos", "unk")]
    sizes = [size for shape in about["state"].values() for size in shape if size not in ("batch", "past")]
    if not all(isinstance(symbol, str) for side in symbols for symbol in side):
        raise ValueError("model.json: symbols must be texts")
    if not all(isinstance(number, int) and 0 <= number < min(map(len, symbols)) for number in numbers):
        raise ValueError("model.json: pad, eos and unk must be numbers of symbols")
    if not all(isinstance(size, int) and 0 <= size <= LARGEST for size in sizes):
        raise ValueError(f"model.json: sizes of the state must be in 0 .. {LARGEST}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", metavar="FOLDER", help="written by `python -m fairseq_plugin.convert onnx`")
    parser.add_argument("--beam", type=int, default=5, help="hypotheses of a line (5)")
    parser.add_argument("--tokenized", action="store_true", help="lines are symbols with spaces between them")
    parser.add_argument("--threads", type=int, default=0, help="threads (all cores)")
    args = parser.parse_args()
    if args.beam < 1:
        parser.error(f"--beam={args.beam}: must be >= 1")
    if not (Path(args.folder) / "model.json").is_file():
        parser.error(f"FOLDER={args.folder}: has no model.json; must be written by convert onnx")
    lines = [line.rstrip("\n") for line in sys.stdin]
    try:
        found = Model(args.folder, args.threads).translate(lines, args.beam, args.tokenized)
    except Exception as error:  # of a damaged folder, in the words of Python, numpy, onnxruntime or sentencepiece
        reason = " ".join(str(error).split())
        parser.error(f"FOLDER={args.folder}: cannot be served: {type(error).__name__}: {reason[:500]}")
    for line in found:
        print(line)


if __name__ == "__main__":
    main()
