"""Print the number of stored parameters of untrained fairseq models, as JSON.

    python parameters.py ARCH... -- DATA --user-dir fairseq_plugin [flags of fairseq-train]

The first architecture is built exactly as fairseq-train would build it from these flags. The others, listed for
comparison, ignore flags that they do not have, such as --depth-range.
"""

import json
import logging
import sys

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from recurrence.count import stored


def stored_parameters(flags: list[str], ignore_unknown: bool) -> int:
    """Trainable parameters of the model that the flags describe; a shared parameter counts once."""
    parser = options.get_training_parser()
    if ignore_unknown:
        args, _ = options.parse_args_and_arch(parser, flags, parse_known=True)
    else:
        args = options.parse_args_and_arch(parser, flags)
    config = convert_namespace_to_omegaconf(args)
    model = tasks.setup_task(config.task).build_model(config.model)
    return stored(model)


def main() -> None:
    if "--" not in sys.argv[2:]:
        sys.exit(__doc__)
    logging.disable(logging.INFO)
    split = sys.argv.index("--")
    flags = sys.argv[split + 1 :]
    counts = {
        arch: stored_parameters([*flags, "--arch", arch], ignore_unknown=number > 0)
        for number, arch in enumerate(sys.argv[1:split])
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
