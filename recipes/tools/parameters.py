"""Print how many parameters a model stores, without training it: builds what these flags of fairseq-train describe.

python parameters.py DATA --user-dir fairseq_plugin --arch vanilla_tiny [flags of fairseq-train]
"""

import sys

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf


def stored_parameters(flags: list[str]) -> int:
    """Trainable parameters of the model, a shared one counted once."""
    config = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), flags))
    model = tasks.setup_task(config.task).build_model(config.model)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


if __name__ == "__main__":
    print(stored_parameters(sys.argv[1:]))
