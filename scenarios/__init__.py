"""Runnable questions, one script each; installed as ``ipuperf.scenarios``."""
