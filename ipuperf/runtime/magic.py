"""``%%ipuperf``: a cell of a notebook on simulated IPUs, with the page of each of its sessions below it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from .figures import figures_of

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


def register(shell: InteractiveShell) -> None:
    """Give ``shell`` the magic; ``import popxl``, ``poptorch`` and ``tensorflow`` find ipuperf's from now on.

    ``%%ipuperf [--machine NAME|FILE] [--height PIXELS] [--no-page]``: runs the cell on this machine (default: the
    smallest preset with enough IPUs), prints what ``ipuperf run`` prints, and shows the pages in frames of this height.
    Sessions that earlier cells made keep their machine and are not shown again.
    """
    import ipuperf

    ipuperf.install()
    magic: Any = _Magic(shell)
    shell.register_magic_function(magic, "cell", "ipuperf")


class _Magic:
    """The magic of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    def __call__(self, line: str, cell: str) -> None:
        from IPython.core.magic_arguments import MagicArgumentParser
        from IPython.display import display

        from ipuperf.machine import load_machine
        from ipuperf.report import report_page
        from ipuperf.runtime.settings import AUTO, RunSettings, use_settings

        parser = MagicArgumentParser("%%ipuperf")
        parser.add_argument("--machine", default=AUTO)
        parser.add_argument("--height", type=int, default=700)
        parser.add_argument("--no-page", action="store_true")
        options: Any = parser.parse_argstring(line)
        if options.machine != AUTO:
            load_machine(options.machine)  # an unknown machine is an error before the cell runs
        with use_settings(RunSettings(options.machine)) as settings:
            self._shell.run_cell(cell).raise_error()
        for executable in settings.executables:
            if not executable.is_compiled:
                continue
            for figure in figures_of(executable):
                print(f"{executable.name}: {figure}")
            if not options.no_page:
                page = html.escape(report_page(executable.as_called().trace, executable.name))
                frame = f'<iframe srcdoc="{page}" width="100%" height="{options.height}" frameborder="0"></iframe>'
                display({"text/html": frame}, raw=True)
