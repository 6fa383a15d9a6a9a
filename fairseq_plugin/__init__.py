"""The fairseq plugin: repairs the host, then registers the architectures (``--user-dir fairseq_plugin``)."""

from fairseq_plugin import hostfix

hostfix.apply()
