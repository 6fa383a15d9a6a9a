"""The fairseq plugin: repairs fairseq, then registers architectures, tasks and criterions (``--user-dir``)."""

from fairseq_plugin import repairs
from recurrence.private_torch import bound_caches

repairs.apply()
bound_caches()

# By name, because fairseq imports these folders by itself only where nothing has imported this package before.
from fairseq_plugin.models import (  # noqa: E402,F401
    baselines,
    ilr,
    parameter_sharing,
    recurrent_lm,
    recursive,
    ringformer,
    shared_lm,
    speech,
)
from fairseq_plugin.modules import commands, elastic  # noqa: E402,F401
from fairseq_plugin.tasks import automaton, copying, pixel_classification, shifted_language_modeling  # noqa: E402,F401

commands.check_commands()
