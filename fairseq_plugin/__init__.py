"""The fairseq plugin: repairs the host, then registers the architectures (``--user-dir fairseq_plugin``)."""

from fairseq_plugin import hostfix

hostfix.apply()

# By name, because the host imports models/ by itself only where nothing has imported this package before.
from fairseq_plugin.models import (  # noqa: E402,F401
    ilr,
    parameter_sharing,
    recurrent_lm,
    recursive,
    ringformer,
    shared_lm,
    speech,
)
