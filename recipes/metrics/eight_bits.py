"""Print the error rates of a checkpoint's pronunciations in eight bits, and the size of its files, as JSON.

    python eight_bits.py average.pt=BIN --letters TEST.letters --references TEST.references > scores.json

The checkpoint is converted to ONNX as `python -m fairseq_plugin.convert onnx --int8` does, with the dictionaries of the
folder BIN; the search is that of the file serve.py, with beam 5. Error rates are those of pronunciation.py.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from arguments import named_file, parser, print_scores
from pronunciation import error_rates

from fairseq_plugin.convert import write_onnx
from fairseq_plugin.serve import Model
from fairseq_repairs.checkpoints import load_safely
from recurrence.files import read_text

BEAM = 5


def measured(args: argparse.Namespace) -> dict[str, float]:
    """Error rates and size of a checkpoint."""
    checkpoint, dictionaries = args.model
    letters, references = (read_text(path).splitlines() for path in (args.letters, args.references))
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "served"
        write_onnx(load_safely(checkpoint), folder, dictionaries, None, int8=True)
        found = Model(folder, torch.get_num_threads()).translate(letters, BEAM, tokenized=True)
        size = sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".onnx", ".bin"))
    return error_rates(found, references) | {"megabytes": round(size / 1e6, 3)}


def main() -> None:
    command_line = parser(__doc__)
    command_line.add_argument("model", type=named_file, metavar="CHECKPOINT=BIN", help="with the folder of its data")
    command_line.add_argument("--letters", type=Path, required=True, help="words, as letters with spaces between them")
    command_line.add_argument(
        "--references", type=Path, required=True, help="their pronunciations, as in pronunciation.py"
    )
    print_scores(command_line, measured)


if __name__ == "__main__":
    main()
