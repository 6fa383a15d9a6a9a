"""The fairseq plugin: repairs fairseq, then registers architectures, tasks and criterions (``--user-dir``)."""

import fairseq_repairs  # noqa: F401  before all else
from fairseq_repairs import sizes
from recurrence.private_torch import bound_caches

bound_caches()
sizes.PACKAGES.add(__name__)

# By name, because fairseq imports these folders by itself only where nothing has imported this package before.
from fairseq_plugin import elastic, letters, log, overrides  # noqa: E402,F401
from fairseq_plugin.export import upstream  # noqa: E402,F401
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
from fairseq_plugin.tasks import automaton, copying, pixel_classification, shifted_language_modeling  # noqa: E402,F401

log.shorten()
