"""The commands of ``ipuperf``, one module each; ``ipuperf/cli.py`` puts them together."""
