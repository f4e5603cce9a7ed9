"""Programs run without TensorFlow's graph."""

from ....refusals import refused

_INSTEAD = "there are no Poplar executables; run the program by a session or IPUStrategy.run"
embedded_runtime_start = refused("embedded_runtime.embedded_runtime_start", _INSTEAD)
embedded_runtime_call = refused("embedded_runtime.embedded_runtime_call", _INSTEAD)
RuntimeContext = refused("embedded_runtime.RuntimeContext", _INSTEAD)

__all__ = ["RuntimeContext", "embedded_runtime_call", "embedded_runtime_start"]
