"""``python -m ipuperf`` is the command ``ipuperf``."""

from ipuperf.cli import main

main()
