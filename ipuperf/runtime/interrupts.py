"""Blocks of code that no signal interrupts."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver signals that end a program after the block instead of within it. The block should be short.

    An exception in the middle of a library's own clean-up (``zipfile``) would turn into another exception.
    """
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread alone
        yield
        return
    received: list[int] = []

    def later(number: int, frame: FrameType | None) -> None:
        received.append(number)

    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    # Only Python handlers are delayed. A default or ignored signal raises nothing in Python code.
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    try:
        for number in handlers:
            signal.signal(number, later)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # One signal is enough to end the program, however many arrived.
        for number in received[:1]:
            signal.raise_signal(number)
