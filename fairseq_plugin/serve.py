"""Translates or continues text: `python serve.py FOLDER [--beam 5] [--tokenized] < lines`.

`python -m fairseq_plugin.convert onnx` writes the folder. This file may be copied anywhere. It needs only onnxruntime
and numpy, and sentencepiece if the folder has pieces and the lines are raw text. The search is that of
fairseq-generate: the same tokens for the same model.
"""

import argparse
import functools
import json
import logging
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

logger = logging.getLogger(__name__)
LARGEST = 100_000  # size of a dimension in a model's state


class Model:
    """A translation or language model in a folder.

    Args:
        folder: written by `convert onnx`.
        threads: of onnxruntime; 0 for all cores.
    """

    def __init__(self, folder: str | Path, threads: int = 0):
        import onnxruntime

        self.folder = folder = Path(folder)
        if strange := [file for file in folder.iterdir() if not (file.is_file() or file.is_dir())]:
            raise ValueError(f"{strange[0]}: must be a file, not a pipe or a device")
        with open(folder / "model.json", encoding="utf-8") as file:
            self.about = json.loads(file.read(1 << 28))  # a larger one is none, and might fill the memory
        _check(self.about)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        names = ("encoder", "decoder") if self.about["translates"] else ("decoder",)
        settings = dict(sess_options=options, providers=["CPUExecutionProvider"])
        files = {name: str(folder / f"{name}.onnx") for name in names}
        self.sessions = {name: onnxruntime.InferenceSession(file, **settings) for name, file in files.items()}
        self.source, self.target = self.about["symbols"][0], self.about["symbols"][-1]
        self.numbers = {symbol: number for number, symbol in enumerate(self.source)}
        self.pad, self.eos, self.unk = (self.about[name] for name in ("pad", "eos", "unk"))
        self.start = self.about.get("start", self.eos)  # an older folder has none
        self.batch_dims = {name: shape.index("batch") for name, shape in self.about["state"].items()}
        self.batch_dims |= {"source": 0, "contexts": 1}

    @functools.cached_property
    def pieces(self):
        """The folder's model of sentencepiece, which only raw text needs; None if texts are split at spaces."""
        if self.about["pieces"] is None:
            return None
        import sentencepiece

        return sentencepiece.SentencePieceProcessor(str(self.folder / Path(self.about["pieces"]).name))

    def encode(self, line: str, tokenized: bool = False) -> list[int]:
        """The numbers of a line's symbols, which are separated by spaces if it is tokenized, without an end."""
        if self.pieces is not None and not tokenized:
            line = " ".join(self.pieces.encode(line, out_type=str))  # split again, as fairseq does at blanks in a piece
        return [self.numbers.get(word, self.unk) for word in line.split()]

    def decode(self, numbers: Iterable[int], tokenized: bool = False) -> str:
        """The text of symbols, or the symbols themselves with spaces between them."""
        words = [self.target[number] for number in numbers]
        return " ".join(words) if tokenized or self.pieces is None else self.pieces.decode(words)

    def translate(self, lines: Sequence[str], beam: int = 5, tokenized: bool = False, batch: int = 32) -> list[str]:
        """The best translation of each line, or of a language model the most likely continuation.

        As in fairseq with this package, an empty line has an empty translation; a search would make one up. So has,
        with a warning, a line that is longer than the model's positions.
        """
        encoded, translates = [self.encode(line, tokenized) for line in lines], self.about["translates"]
        # A source and its end have positions, whose number an older folder lacks; a text that goes on has one more.
        most = (self.about.get("longest_source") or math.inf) if translates else self.about["longest"] - 1
        for number, text in enumerate(encoded, 1):
            if len(text) >= most:
                logger.warning(f"line {number}: has {len(text)} symbols: must have < {most}: left empty")
            elif 2 * text.count(self.unk) > len(text):
                unknown = f"{text.count(self.unk)} of {len(text)} symbols are unknown"
                logger.warning(f"line {number}: {unknown}: is it raw text, and was the folder written for pieces?")
        searched = [index for index, text in enumerate(encoded) if len(text) < most and (text or not translates)]
        order = sorted(searched, key=lambda index: len(encoded[index]))
        found: dict[int, str] = {}
        rows = batch if translates else 1
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            texts = self.search([encoded[index] for index in chosen], beam)
            found.update(zip(chosen, (self.decode(text, tokenized) for text in texts)))
        return [found.get(index, "") for index in range(len(lines))]

    def search(self, texts: Sequence[Sequence[int]], beam: int, most: int = 200) -> list[list[int]]:
        """fairseq's beam search: the best output of each source text, or continuation of a single prompt.

        Args:
            texts: numbers of symbols, without the end of a text.
            beam: hypotheses of each.
            most: longest output, in symbols, without the prompt.

        Raises:
            ValueError: if the model's positions end within the prompt.
        """
        rows, symbols = len(texts), len(self.target)
        prompt = [self.start] if self.about["translates"] else [self.start, *texts[0]]
        most = min(most + len(prompt) - 1, self.about["longest"] - 1)
        if len(prompt) > most:
            raise ValueError(f"a text of {len(prompt) - 1} symbols: must be shorter than {most}, where positions end")
        inputs = self._first_inputs(texts, beam)
        total: np.ndarray = np.zeros((rows, beam), dtype=np.float32)
        for symbol, following in zip(prompt, prompt[1:]):
            scores, inputs = self.step(np.full((rows * beam, 1), symbol), inputs)
            total += scores[0, following]  # fairseq's score of a text includes its prompt
        history = np.full((rows * beam, 1), prompt[-1])
        ended: list[list[tuple[float, list[int]]]] = [[] for _ in texts]
        open_rows = list(range(rows))  # of the texts that are not finished
        for length in range(len(prompt), most + 2):
            scores, inputs = self.step(history[:, -1:], inputs)
            self._forbid(scores, length, last=length == most + 1)
            scores = scores.reshape(len(open_rows), beam, symbols) + total[:, :, None]
            if length == len(prompt):
                scores = scores[:, :1]  # all hypotheses are equal
            values, top = best(scores.reshape(len(open_rows), -1), 2 * beam)
            kept, places = [], []
            for place, row in enumerate(open_rows):
                going = []
                for rank, (score, choice) in enumerate(zip(values[place], top[place])):
                    parent, symbol = place * beam + choice // symbols, choice % symbols
                    if symbol != self.eos:
                        going.append((score, parent, symbol))
                    elif rank < beam and np.isfinite(score) and len(ended[row]) < beam:
                        ended[row].append((score / length, history[parent, 1:].tolist()))
                if len(ended[row]) < beam and length <= most:
                    kept += going[:beam]
                    places.append(place)
            if not places:
                break
            sums, parents, chosen = map(np.array, zip(*kept))
            total = sums.reshape(len(places), beam)
            history = np.concatenate([history[parents], chosen[:, None]], axis=1)
            moved = self.about["state"] if len(places) == len(open_rows) else inputs
            inputs = inputs | {name: inputs[name].take(parents, self.batch_dims[name]) for name in moved}
            open_rows = [open_rows[place] for place in places]
        return [max(texts, key=lambda one: one[0])[1] for texts in ended]

    def _first_inputs(self, texts: Sequence[Sequence[int]], beam: int) -> dict[str, np.ndarray]:
        """Those of the first step: what the encoder made of source texts, and an empty state."""
        inputs = self.first_state(len(texts) * beam)
        if self.about["translates"]:
            longest = max(map(len, texts))
            padded = [[self.pad] * (longest - len(text)) + [*text, self.eos] for text in texts]
            source = np.array(padded, dtype=np.int64)
            (contexts,) = self.sessions["encoder"].run(None, {"source": source})
            inputs |= {"source": source.repeat(beam, 0), "contexts": contexts.repeat(beam, 1)}
        return inputs

    def _forbid(self, scores: np.ndarray, length: int, last: bool) -> None:
        """Leaves no symbol that cannot follow: padding, an end of an empty output, all but an end at the last place."""
        scores[np.isnan(scores)] = -np.inf
        scores[:, self.pad] = -np.inf
        if length == 1:
            scores[:, self.eos] = -np.inf
        if last:
            scores[:, np.arange(scores.shape[1]) != self.eos] = -np.inf

    def step(self, tokens: np.ndarray, inputs: dict) -> tuple[np.ndarray, dict]:
        """Log-probabilities of the next symbol, (B, V), and the inputs of the next step, after tokens (B, 1)."""
        scores, *after = self.sessions["decoder"].run(None, {"tokens": tokens.astype(np.int64), **inputs})
        return scores, inputs | dict(zip(self.about["state"], after))

    def first_state(self, batch: int) -> dict[str, np.ndarray]:
        """The state of a decoder that has read nothing."""
        sizes = {"batch": batch, "past": 0}
        return {
            name: np.zeros([sizes.get(size, size) for size in shape], dtype=self.about["types"][name])
            for name, shape in self.about["state"].items()
        }


def best(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The highest scores of each row and where they are, from high to low; at most all but one."""
    count = min(count, scores.shape[1] - 1)
    top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    top = np.take_along_axis(top, np.argsort(-np.take_along_axis(scores, top, 1), axis=1, kind="stable"), 1)
    return np.take_along_axis(scores, top, 1), top


def _check(about: dict) -> None:
    """Raises ValueError, KeyError or TypeError unless it is what `convert onnx` writes, with no size beyond LARGEST."""
    symbols = about["symbols"]
    sizes = [size for shape in about["state"].values() for size in shape if size not in ("batch", "past")]
    if not all(isinstance(symbol, str) for side in symbols for symbol in side):
        raise ValueError("model.json: symbols must be texts")
    special = [about["pad"], about["unk"], about["eos"], about.get("start", about["eos"])]
    if not all(number in range(min(map(len, symbols))) for number in special):
        raise ValueError("model.json: pad, unk, eos and start must be numbers of symbols")
    if not all(isinstance(size, int) and 0 <= size <= LARGEST for size in sizes):
        raise ValueError(f"model.json: sizes of the state must be in 0 .. {LARGEST}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("folder", metavar="FOLDER", help="written by `python -m fairseq_plugin.convert onnx`")
    parser.add_argument("--beam", type=int, default=5, help="hypotheses per line (default: 5)")
    parser.add_argument("--tokenized", action="store_true", help="lines are symbols with spaces between them")
    parser.add_argument("--threads", type=int, default=0, help="threads (default: all cores)")
    args = parser.parse_args()
    if args.beam < 1:
        parser.error(f"--beam={args.beam}: must be >= 1")
    if not (Path(args.folder) / "model.json").is_file():
        parser.error(f"FOLDER={args.folder}: has no model.json; must be written by convert onnx")
    try:
        with open(0, encoding="utf-8", newline="\n", closefd=False) as text:  # a lone carriage return ends no line
            lines = [line.rstrip("\r\n") for line in text]
    except UnicodeDecodeError as error:
        parser.error(f"standard input: must be UTF-8: {error}")
    try:
        model = Model(args.folder, args.threads)
        if args.beam > (most := len(model.target) - 2):
            parser.error(f"--beam={args.beam}: must be <= {most}, because there are {most + 2} symbols")
        found = model.translate(lines, args.beam, args.tokenized)
    except Exception as error:  # of a damaged folder, in the words of Python, numpy, onnxruntime or sentencepiece
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        parser.error(f"FOLDER={args.folder}: cannot be served: {reason}")
    sys.stdout.buffer.write("".join(f"{line}\n" for line in found).encode())


if __name__ == "__main__":
    main()
