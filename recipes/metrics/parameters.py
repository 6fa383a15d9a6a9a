"""Print how many parameters models store, as JSON, without training them.

    python parameters.py ARCH... -- DATA --user-dir fairseq_plugin [flags of fairseq-train]

Each architecture is built as fairseq-train would build it from these flags.
"""

import json
import logging
import sys

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf


def stored_parameters(flags: list[str]) -> int:
    """Trainable parameters of the model that these flags describe, a shared one counted once."""
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
    model = tasks.setup_task(config.task).build_model(config.model)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def main() -> None:
    if "--" not in sys.argv[2:]:
        sys.exit(__doc__)
    logging.disable(logging.INFO)
    split = sys.argv.index("--")
    flags = sys.argv[split + 1 :]
    print(json.dumps({arch: stored_parameters([*flags, "--arch", arch]) for arch in sys.argv[1:split]}))


if __name__ == "__main__":
    main()
