"""Hooks of estimators."""

from ...refusals import refused

_INSTEAD = "TensorFlow has no estimators any more; fetch values through an IPUOutfeedQueue"
IPULoggingTensorHook = refused("ipu_session_run_hooks.IPULoggingTensorHook", _INSTEAD)

__all__ = ["IPULoggingTensorHook"]
