"""Hooks of estimators."""

from ...refusals import refused

IPULoggingTensorHook = refused("ipu_session_run_hooks.IPULoggingTensorHook", "TensorFlow has no estimators any more; fetch values through an IPUOutfeedQueue")

__all__ = ["IPULoggingTensorHook"]
