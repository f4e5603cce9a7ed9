"""How a run was started, kept in the folder of its report, so that its program can be run again with a change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ipuperf.version import __version__, arithmetic

ORIGIN = "run.json"
"""Name of the file in the folder of a report."""

_SURROUNDINGS = ("POPLAR_", "POPART_", "POPTORCH_", "POPXL_", "POPRUN_", "POPDIST_", "TF_POPLAR_", "IPUPERF_")
"""How the names of environment variables begin that programs for IPUs read."""


class OriginError(ValueError):
    """It cannot be said how a run was started; the message says why."""


@dataclass(frozen=True)
class Origin:
    """How a program was started.

    Attributes:
        script: its file, absolute; sha256: of the bytes of that file.
        arguments: its arguments.
        machine: name of a preset, absolute path of a machine file, or ``auto``.
        clock: ``simulated`` or ``wall``.
        folder: where it was started.
        environment: variables of the environment that programs for IPUs read.
        session: number of the session that the report is of, in order of creation.
        version: ipuperf's.
        arithmetic: what computed the values.
    """

    script: str
    sha256: str
    arguments: tuple[str, ...] = ()
    machine: str = "auto"
    clock: str = "simulated"
    folder: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    session: int = 0
    version: str = __version__
    arithmetic: str = field(default_factory=arithmetic)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def changed(self) -> str:
        """What is no longer as it was when the program was started; "" where all that can be seen is."""
        try:
            now = content_hash(Path(self.script))
        except OSError as error:
            return f"{self.script} cannot be read: {error.strerror}"
        if now != self.sha256:
            return f"{self.script} has changed since the run"
        return "" if Path(self.folder).is_dir() else f"{self.folder}, where the program was started, is gone"


def content_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


def origin_of(script: Path, arguments: Sequence[str], machine: str, clock: str) -> Origin:
    """How a program is started here and now."""
    if Path(machine).is_file():
        machine = str(Path(machine).absolute())
    given = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SURROUNDINGS)}
    return Origin(
        str(script.absolute()), content_hash(script), tuple(arguments), machine, clock, os.getcwd(), environment=given
    )


def read_origin(folder: Path) -> Origin:
    """How the run was started whose report is in ``folder``.

    Raises:
        OriginError: the file is missing, or is not what ``ipuperf run`` writes.
    """
    path = folder / ORIGIN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        origin = Origin(**{**found, "arguments": tuple(found["arguments"])})
    except FileNotFoundError:
        raise OriginError(f"{folder} has no {ORIGIN}, which says what program made the trace") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise OriginError(f"{path} is not what `ipuperf run` writes: {error}") from None
    return origin
