"""`python -m timm_plugin.train` with a crash in the middle: the first process kills itself after its first epoch."""

import logging
import os
import signal

from timm_plugin import train


class Crash(logging.Handler):
    """Kills the process when it logs the end of the first epoch, whose checkpoint is on the disk by then."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("epoch 1 of"):
            os.kill(os.getpid(), signal.SIGKILL)


train.logger.addHandler(Crash())
train.main()
