"""The kinds of tables. Each has a file with its settings in tables.toml and the commands that they make."""

from kinds.base import Kind
from kinds.count import Count
from kinds.images import Images
from kinds.language import Language
from kinds.sequence import Sequence
from kinds.speech import Speech
from kinds.transduction import Transduction
from kinds.translation import Translation

KINDS: dict[str, type[Kind]] = {
    "translation": Translation,
    "transduction": Transduction,
    "images": Images,
    "language": Language,
    "sequence": Sequence,
    "speech": Speech,
    "count": Count,
}
