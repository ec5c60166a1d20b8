"""A child process that ends as one does whose kernels are miscompiled."""

import os
import signal


def serve(_request: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)
