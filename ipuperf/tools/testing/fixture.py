"""The object behind the fixture ``cycle_baseline``: record, compare, rewrite."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuperf.tools.errors import BaselineError

if TYPE_CHECKING:
    from ipuperf.tools.testing.record import Header

ROWS = 20
"""Default number of rows of a section that a failure shows."""

_LONGEST_NAME = 120
"""Most characters of a file name before its suffix; a longer name is cut and ends in a hash."""


@dataclass
class Ledger:
    """The shared state of the baselines of one pytest run: the test that owns each file, and the files written."""

    owners: dict[str, str] = field(default_factory=dict)
    written: list[tuple[Path, str]] = field(default_factory=list)
    unchanged: int = 0

    def claim(self, path: Path, owner: str) -> None:
        """Record that a test uses a file.

        Raises: BaselineError: another test uses it, too; their names differ only in characters that a file name cannot
        have.
        """
        # Some file systems do not tell upper from lower case.
        key = str(path).casefold()
        first_owner = self.owners.setdefault(key, owner)
        if first_owner != owner:
            raise BaselineError(
                f"baseline {path} belongs to two tests, {first_owner} and {owner}: rename one, or give its checks "
                "other names"
            )


class CycleBaseline:
    """Compares programs with their baselines. The fixture ``cycle_baseline`` makes one for each test.

    Args:
        test: identifier of the test, as pytest writes it.
        stem: start of the names of its files.
        folder: folder of the files.
        update: whether to rewrite the files instead of comparing.
        command: the command that records them again, for messages.
        ledger: shared by the tests of one run.
    """

    def __init__(self, test: str, stem: str, folder: Path, update: bool, command: str, ledger: Ledger) -> None:
        self.test = test
        self.stem = stem
        self.folder = folder
        self.update = update
        self.command = command
        self._ledger = ledger
        self._used: set[Path] = set()

    def path(self, name: str = "step") -> Path:
        """Return the file of the check of that name: ``<test file>.<test>.<name>.json`` in the folder of baselines.

        Raises:
            ValueError: the name is empty or has characters other than letters, digits, ``_``, ``-`` and ``.``.
        """
        return self.folder / f"{_shortened(f'{self.stem}.{_checked_name(name)}')}.json"

    def check(
        self,
        subject: Any,
        name: str = "step",
        *,
        rtol: float = 0.0,
        atol: float = 0.0,
        only: Iterable[str] | None = None,
        rows: int = ROWS,
    ) -> None:
        """Compare one run of a program with its baseline, or write the baseline under ``--update-baselines``.

        Recorded are (see :func:`ipuperf.testing.record.record`) cycles in all, by part and by kind; calls and cycles of
        each op; bytes of memory by IPU and category; bytes moved by kind of transfer. Nothing of it depends on the
        values that the program computes.

        Args:
            subject: a PopXL session, a compiled PopTorch executor, an Executable, a trace: see
                :func:`ipuperf.testing.trace_of`.
            name: distinguishes the checks of one test.
            rtol: a figure may differ by this share of its baseline. Calls of ops must agree.
            atol: and by this many cycles or bytes.
            only: compare these sections only: ``cycles``, ``operations``, ``memory``, ``transfers``. All are recorded.
            rows: most rows of a section that a failure shows.

        Raises:
            AssertionError: something moved; the message is a table of what did.
            BaselineError: the baseline is missing, damaged, of another machine, of another major version of ipuperf, or
                of traces of another schema.
            TypeError, ValueError: an argument that is none of the above.
        """
        __tracebackhide__ = True
        from ipuperf.tools.testing.compare import Tolerance, check_sections, moved_sections
        from ipuperf.tools.testing.files import read_record, text_of
        from ipuperf.tools.testing.record import record
        from ipuperf.tools.testing.subject import trace_of

        tolerance, sections = Tolerance(rtol, atol), check_sections(only)
        _check_rows(rows)
        path = self._claim(self.path(name))
        # Read before simulating: a missing baseline fails at once.
        if not self.update:
            baseline = self._read(path, read_record)
        current = record(trace_of(subject))
        if self.update:
            self._write(path, text_of(current))
            return
        self._same_kind(path, baseline.header, current.header)
        moved = moved_sections(baseline, current, tolerance, sections)
        if moved:
            raise AssertionError(self._difference(path, baseline.header, current.header, moved, tolerance, rows))

    def check_table(
        self,
        table: Sequence[Mapping[str, Any]],
        name: str,
        *,
        keys: Sequence[str],
        folder: str | os.PathLike[str] | None = None,
        rtol: float = 0.0,
        rows: int = ROWS,
    ) -> None:
        """Compare a table of the test's own with ``<folder>/<name>.csv``, or write it under ``--update-baselines``.

        Args: table: rows with the same columns; values are compared as text, numbers within ``rtol``. name: name of the
        file without its suffix. keys: columns that name a row; the other columns are values. folder: folder of the
        file; by default the folder of the other baselines, with the test's name before ``name``. rtol, rows: as in
        :meth:`check`.

        Raises:
            AssertionError: rows are new, gone or changed.
            BaselineError: the file is missing, or is no table with these keys.
            ValueError: two rows have one name, the columns differ, or another argument is invalid.
        """
        __tracebackhide__ = True
        from ipuperf.tools.testing import tables
        from ipuperf.tools.testing.compare import Tolerance

        tolerance = Tolerance(rtol)
        _check_rows(rows)
        _checked_name(name)
        # In a folder that the test names, the file just has the table's name.
        stem = name if folder is not None else _shortened(f"{self.stem}.{name}")
        path = self._claim((self.folder if folder is None else Path(folder)) / f"{stem}.csv")
        current = tables.normalised(table, keys)
        if self.update:
            self._write(path, tables.text_of(current))
            return
        baseline = self._read(path, lambda path_to_read: tables.read(path_to_read, keys))
        moved = tables.moved(baseline, current, keys, tolerance)
        if moved:
            report = tables.report(_shown(path), moved, rows)
            raise AssertionError(f"{report}\n{self._remedy('If that is meant')}")

    # -- steps of a check ----------------------------------------------------------------------------------------------

    def _claim(self, path: Path) -> Path:
        if path in self._used:
            raise ValueError(f"baseline {_shown(path)} is checked twice by {self.test}: give each check its own name=")
        self._ledger.claim(path, self.test)
        self._used.add(path)
        return path

    def _read(self, path: Path, read: Any) -> Any:
        __tracebackhide__ = True
        try:
            return read(path)
        except FileNotFoundError:
            raise BaselineError(f"there is no baseline {_shown(path)} yet\n{self._remedy('To record it')}") from None
        except BaselineError as error:
            raise BaselineError(
                f"{error}\nRestore the file from version control. {self._remedy('To record it again')}"
            ) from None

    def _write(self, path: Path, text: str) -> None:
        from ipuperf.tools.testing.files import write_text

        # This is asked before the file is written.
        there = path.exists()
        if write_text(path, text):
            self._ledger.written.append((path, "rewritten" if there else "new"))
        else:
            self._ledger.unchanged += 1

    def _remedy(self, when: str) -> str:
        return f"{when}, run\n    {self.command}"

    def _same_kind(self, path: Path, baseline: Header, current: Header) -> None:
        """Raise unless the baseline is of this machine, this major version and this schema of traces."""
        __tracebackhide__ = True
        for problem in (_other_version(baseline, current), _other_machine(baseline, current)):
            if problem:
                raise BaselineError(f"baseline {_shown(path)} {problem}\n{self._remedy('To record it again')}")

    def _difference(
        self, path: Path, baseline: Header, current: Header, moved: dict[str, list[Any]], tolerance: Any, rows: int
    ) -> str:
        from ipuperf.tools.testing.text import counted, moved_text

        operations = len(moved.get("operations", ()))
        figures = sum(map(len, moved.values())) - operations
        head = (
            f"cycles and bytes of {current['program']!r} on {current['machine']} moved: "
            f"{counted(figures, 'figure')}, {counted(operations, 'op')} ({tolerance})"
        )
        lines = [head, f"baseline {_shown(path)}"]
        if baseline["ipuperf_version"] != current["ipuperf_version"]:
            lines.append(
                f"It was recorded by ipuperf {baseline['ipuperf_version']}, this is {current['ipuperf_version']}: "
                "figures may have moved with the model."
            )
        lines += [moved_text(moved, rows), self._remedy("If that is meant")]
        return "\n".join(lines)


def _other_version(baseline: Header, current: Header) -> str:
    old, new = baseline["ipuperf_version"], current["ipuperf_version"]
    if old.partition(".")[0] != new.partition(".")[0]:
        return (
            f"was recorded by ipuperf {old}, this is ipuperf {new}: another major version has other costs. "
            f"Use ipuperf {old.partition('.')[0]}.x, or accept the new ones."
        )
    if baseline["schema_version"] != current["schema_version"]:
        return (
            f"was recorded from traces of schema version {baseline['schema_version']} by ipuperf {old}, this ipuperf "
            f"({new}) writes schema version {current['schema_version']}."
        )
    return ""


def _other_machine(baseline: Header, current: Header) -> str:
    from ipuperf.tools.testing.record import MACHINE_KEYS

    if baseline["machine"] != current["machine"]:
        return (
            f"was recorded on machine {baseline['machine']!r}, this run simulates {current['machine']!r}. Simulate "
            f"{baseline['machine']!r} (make the session within use_settings(RunSettings(machine=...)) of "
            "ipuperf.runtime.settings), or accept the new machine."
        )
    for key in MACHINE_KEYS:
        if baseline[key] != current[key]:
            return (
                f"was recorded on another machine {baseline['machine']!r}: its {key} was {baseline[key]!r}, here it is "
                f"{current[key]!r}. Use the machine file it was recorded with, or accept the new one."
            )
    return ""


# -- names -------------------------------------------------------------------------------------------------------------


def _checked_name(name: str) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
        raise ValueError(f"name: {name!r}, expected letters, digits, '_', '-' and '.'")
    return name


def _check_rows(rows: int) -> None:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ValueError(f"rows: {rows!r}, expected a whole number of at least 1")


def stem_of(test_file: str, test: str) -> str:
    """Return the start of the names of a test's files: its file without the suffix and its name.

    Characters that a file name should not have become ``-``.
    """
    return ".".join(re.sub(r"[^A-Za-z0-9_.=+-]+", "-", part).strip("-.") for part in (test_file, test))


def _shortened(name: str) -> str:
    if len(name) <= _LONGEST_NAME:
        return name
    # The hash keeps names apart whose beginnings are equal; its dash and eight digits take nine characters.
    return f"{name[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _shown(path: Path) -> str:
    """The path relative to the working folder if it lies below, else in full."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
