"""How a run was started. The folder of its report keeps this, so that the program can be run again with a change."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ipuperf.base.version import __version__, arithmetic

#: Name of the file in the folder of a report.
ORIGIN = "run.json"

#: Beginnings of the names of environment variables that programs for IPUs read.
_SURROUNDINGS = ("POPLAR_", "POPART_", "POPTORCH_", "POPXL_", "POPRUN_", "POPDIST_", "TF_POPLAR_", "IPUPERF_")


class OriginError(ValueError):
    """The start of a run is unknown; the message says why."""


@dataclass(frozen=True)
class Origin:
    """How a program was started.

    Attributes:
        script: its file, absolute.
        sha256: hash of the bytes of that file.
        arguments: its command-line arguments.
        machine: name of a preset, absolute path of a machine file, or ``auto``.
        clock: ``simulated`` or ``wall``.
        between_calls: seconds that the script takes between two calls, as the user says.
        faults: what is wrong with the machine besides what its file says.
        folder: the working directory at the start.
        environment: environment variables that programs for IPUs read.
        session: number of the session in the report, in order of creation.
        version: ipuperf's version.
        arithmetic: the library that computed the values.
    """

    script: str
    sha256: str
    arguments: tuple[str, ...] = ()
    machine: str = "auto"
    clock: str = "simulated"
    between_calls: float = 0.0
    faults: tuple[str, ...] = ()
    folder: str = "."
    environment: dict[str, str] = field(default_factory=dict)
    session: int = 0
    version: str = __version__
    arithmetic: str = field(default_factory=arithmetic)

    def text(self) -> str:
        """Return the origin as JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def changed(self) -> str:
        """Say what has changed since the program was started; "" if nothing visible has."""
        try:
            current_hash = content_hash(Path(self.script))
        except OSError as error:
            return f"{self.script} cannot be read: {error.strerror}"
        if current_hash != self.sha256:
            return f"{self.script} has changed since the run"
        return "" if Path(self.folder).is_dir() else f"{self.folder}, where the program was started, is gone"


def content_hash(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: it cannot be read.
    """
    return hashlib.sha256(path.read_bytes()).hexdigest()


def origin_of(
    script: Path,
    arguments: Sequence[str],
    machine: str,
    clock: str,
    between_calls: float = 0.0,
    faults: Sequence[str] = (),
) -> Origin:
    """Describe how a program is started in this process."""
    if Path(machine).is_file():
        # A later run may start in another folder.
        machine = str(Path(machine).absolute())
    # In order of their names, equal environments give equal files.
    environment = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SURROUNDINGS)}
    return Origin(
        str(script.absolute()),
        content_hash(script),
        tuple(arguments),
        machine,
        clock,
        between_calls,
        tuple(faults),
        os.getcwd(),
        environment=environment,
    )


def read_origin(folder: Path) -> Origin:
    """Read how the run was started whose report is in ``folder``.

    Raises:
        OriginError: the file is missing, or ``ipuperf run`` did not write it.
    """
    path = folder / ORIGIN
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        words = {"arguments": tuple(fields["arguments"]), "faults": tuple(fields.get("faults", ()))}
        origin = Origin(**{**fields, **words})
    except FileNotFoundError:
        raise OriginError(f"{folder} has no {ORIGIN}, which says what program made the trace") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise OriginError(f"{path} is not what `ipuperf run` writes: {error}") from None
    return origin
