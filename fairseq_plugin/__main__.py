"""Print the folder of this package, so that ``--user-dir "$(python -m fairseq_plugin)"`` works from anywhere."""

from pathlib import Path

print(Path(__file__).resolve().parent)
