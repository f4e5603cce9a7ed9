"""What sweeps say of factors, constraints, tables and figures, kept as text; workers that die, in this process."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import digest
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from rows import Golden

from ipuperf.sweep import Sweep, SweepError, processes, read_sweep, run, work
from ipuperf.sweep.constraints import Constraint
from ipuperf.sweep.plots import draw, pareto_front
from ipuperf.sweep.spec import Configuration
from ipuperf.sweep.store import Store
from ipuperf.sweep.table import FORMAT, RESULTS, read_table, table_of, write_table


def outcome(call: Callable[[], Any], there: Path) -> list[str]:
    try:
        return digest.lines(call())
    except SweepError as error:
        return [f"refused: {error}".replace(str(there), "THERE").partition(" as TOML:")[0]]


# -- files, factors, constraints ---------------------------------------------------------------------------------------

FACTORS = ("n = [1, 2]", "n = 3", 'n = "x"', "n = []", "n = [[1, 2], [3]]", "n = [1, 1]", "n = [1, 1.0, true]")
FACTORS += ("n = [nan]", "n = [inf]", "n = [{}]", "n = [1979-05-27]", "n = [1]\nm = [2]", "n = [1]\nseed = [2]")
FACTORS += ("n = [1]\ncycles = [2]", '"a b" = [1]', '"a.b" = [1]', '"1a" = [1]', "n = [1]\nmachine = ['pod4', 'auto']")
FACTORS += ("n = [1]\nmachine = 'none.toml'", "n = [1]\nmachine = [4]")
FACTORS += ("n = [1]\nprefetch_depth = [1, 2]\ncallback_threads = 3", "n = [1]\n'machine.chip.clock' = [2]")
FACTORS += ("n = [1]\nmachine = 'pod4'\n'machine.chip.clock' = [1, 2, 0.5]",)
FACTORS += ("n = [1]\nmachine = 'pod4'\n'machine.chip.clock' = [-1]",)
FACTORS += ("n = [1]\nmachine = 'auto'\n'machine.chip.clock' = [2]",)
FACTORS += ("n = [1]\nmachine = 'pod4'\n'machine.chip.sync' = [1.001]",)
FACTORS += ("n = [1]\nmachine = ['pod4', 'pod16']\nb = [true, false]",)
HEADS = ("", "seeds = [3, 4]\n", "seeds = [-1]\n", "seeds = [true]\n", "seeds = 3\n", "session = 1\n")
HEADS += ("session = 1.5\n", "plots = ['x']\n", "plots = 'x'\n", "constraints = ['n > 1']\n")
HEADS += ("constraints = ['n > 1', 'n < 1']\n", "constraints = ['m']\n", "model = 'encoder'\n")
HEADS += ("arguments = ['{n}', '{n?--n}', '-{n?}-', '', '{seed}']\n", "arguments = ['{gone}']\n", "arguments = [1]\n")
HEADS += ("folder = 'x'\n", "script = 3\n")


def swept(path: Path) -> list[str]:
    """The configurations of a file with their commands, and what keys say of them."""
    sweep = read_sweep(path)
    every = sweep.configurations()
    said = [f"{each} {sweep.command(each)} {sweep.scaled(each)} {sweep.program_key(each)}" for each in every]
    keys = {sweep.key(each) for each in every}
    return [*said, f"{len(keys)} keys of {len({*map(len, keys)})} lengths, the first {max(map(len, keys))}"]


def test_files(tmp_path: Path, golden: Golden) -> None:
    (tmp_path / "s.py").touch()
    file, said = tmp_path / "f.toml", []
    plain = "script = 's.py'\narguments = ['{n}', '{b?--b}']\n".replace(", '{b?--b}'", "")
    for factors in FACTORS:
        text = plain.replace("']\n", "', '{b?--b}']\n", 1) if "\nb =" in factors else plain
        file.write_text(f"{text}[factors]\n{factors}\n")
        said += [f"-- {factors!r}", *outcome(lambda: swept(file), tmp_path)]
    for head in HEADS:
        text = (
            plain
            if not head.startswith(("arguments", "script"))
            else ""
            if head.startswith("script")
            else "script = 's.py'\n"
        )
        file.write_text(f"{head}{text}[factors]\nn = [0, 1, 2]\n")
        said += [f"-- {head!r}", *outcome(lambda: swept(file), tmp_path)]
    for text in (
        "model = 'encoder'\n[factors]\nmachine = 'pod4'\n'config.x' = [1]\nmicro_batch = [2]",
        "x",
        "factors = 3",
    ):
        file.write_text(text)
        said += [f"-- {text!r}", *outcome(lambda: swept(file), tmp_path)]
    golden(said)


def test_what_keys_depend_on(tmp_path: Path) -> None:
    """Each part of what runs, and nothing else."""
    (tmp_path / "s.py").touch()
    sweep = Sweep({"machine": ("pod4", "pod16"), "n": (1, 2)}, "s.py", ("{n}",), folder=str(tmp_path))
    one, *others = sweep.configurations()
    assert all(sweep.key(each) != sweep.key(one) for each in others)
    assert sweep.key(dict(reversed(one.items()))) == sweep.key(one)
    assert [sweep.program_key(each) == sweep.program_key(one) for each in others] == [False, True, False]
    placed = dataclasses.replace(sweep, arguments=("{n}", "{machine}"))
    assert [placed.program_key(each) == placed.program_key(one) for each in others] == [False, False, False]
    assert placed.key(one) != sweep.key(one) != dataclasses.replace(sweep, session=1).key(one)
    model = Sweep({"machine": ("pod4", "pod16"), "micro_batch": (1,)}, model="encoder")
    assert len({model.program_key(each) for each in model.configurations()}) == 1


EXPRESSIONS = ("n", "not n", "n - 2", "-n < -1", "+n", "n + m == 5", "n - m == -1", "n * m > 6", "n / m", "n // m")
EXPRESSIONS += ("n % m == 2", "n / 0", "n // z", "n % z", "1 < n < m", "1 < n > m", "n < m or n / 0", "n > m and n / 0")
EXPRESSIONS += ("n > 1 and 't'", "s == 'a'", "s < 'b'", "s < 1", "s + 'b'", "s * 2", "n in l", "7 not in l")
EXPRESSIONS += ("s in 'abc'", "n in 3", "l == [2, 5]", "l == (2, 5)", "len(l) == 2", "max(n, m) == 3", "min(n, m) == n")
EXPRESSIONS += ("abs(-n) == n", "len(n)", "sum(l)", "max(n, key=n)", "n ** 2", "n << 1", "n is m", "~n", "l[0]")
EXPRESSIONS += ("lambda: 1", "None", "b'a'", "c.d > 3", "c.e", "c", "q", "", "n +", "n; m", "n\n", "  n > 1")
EXPRESSIONS += ("1e400 > n", "True", "b and n", "b + 1", "not b or s", "0.1 + 0.2 == 0.3", "n == 2.0")
VALUES = {"n": 2, "m": 3, "z": 0, "s": "a", "l": [2, 5], "b": True, "c.d": 4}


PYTHONS = re.compile(r": [^:]*(?<!needs numbers)(?=, for n = 2)")


def test_constraints(tmp_path: Path, golden: Golden) -> None:
    said = []
    for text in EXPRESSIONS:
        line = outcome(lambda t=text: str(Constraint(t, VALUES).holds(VALUES)), tmp_path)[0].partition("expression: ")[
            0
        ]
        said.append(f"{text!r} {PYTHONS.sub('', line)}")  # the words of Python are those of its version
    for length in (1_000, 1_001):
        said.append(outcome(lambda n=length: str(Constraint("1".ljust(n), VALUES).holds(VALUES)), tmp_path)[0])
    golden(said)


# -- tables and figures ------------------------------------------------------------------------------------------------


def table() -> pd.DataFrame:
    made = []
    for number, (machine, n, m) in enumerate(
        (machine, n, m) for machine in ("pod4", "pod16") for n in (8, 2, 4) for m in (1, 3)
    ):
        row = {"machine": machine, "n": n, "m": m, "ok": bool(m % 2), "split": [n, m] if m > 1 else "a", "seed": 0}
        row |= {"format": FORMAT, "took_seconds": 0.5, "ipuperf": "1", "ipus": 4, "bytes_per_tile": 700}
        if number == 5:
            row |= {"failure": 'ValueError: "x", =1'}
        else:
            cycles = 1000 + (number * 37) % 11 * 150
            row |= {"fits": number % 4 != 3, "reason": None if number % 4 != 3 else "IPU 0", "cycles": cycles,
                    "seconds": cycles / 1e6, "samples": 8.0 * m, "samples_per_second": 8e6 * m / cycles,
                    "runs_per_second": 1e6 / cycles,
                    "max_tile_bytes": 90 + number * 60}  # fmt: skip
        made.append(row)
    return table_of(made, ("machine", "n", "m", "ok", "split", "seed"))


PLOTS = ("lines:n,cycles", "lines:n,samples_per_second,machine", "lines:machine,seconds,n", "lines:ok,cycles")
PLOTS += ("lines:seed,cycles,split", "heatmap:n,machine,cycles", "heatmap:m,n,samples_per_second")
PLOTS += ("heatmap:ok,split,seconds", "pareto:max_tile_bytes,seconds")
PLOTS += ("pareto:max_tile_bytes,samples_per_second,machine", "pareto:samples_per_second,runs_per_second,ok", "lines:n")
PLOTS += ("lines:n,cycles,m,ok", "heatmap:n,m", "bars:n,m", "lines:n,", "lines:n,machine", "pareto:n,split")
PLOTS += ("heatmap:n,m,reason", "lines: n , cycles ", "pareto:gone,cycles", "")


def shown(figure: Figure) -> Any:
    """The figure; of one whose axis has names its lines."""
    lines = figure.axes[0].lines
    if not any(isinstance(x, str) for line in lines for x in line.get_xdata()):
        return figure
    return [f"{line.get_label()} {list(line.get_xdata())} {[f'{y:.6g}' for y in line.get_ydata()]}" for line in lines]


def test_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    drawn: list[Any] = []

    def keep(figure: Figure, path: Path, **options: Any) -> None:
        Path(path).touch()
        drawn.extend([figure, options])

    monkeypatch.setattr(Figure, "savefig", keep)
    said = []
    for plot in PLOTS:
        said += [
            f"-- {plot}",
            *outcome(lambda p=plot: draw(table(), p, tmp_path / "x.png") or shown(drawn[-2]), tmp_path),
        ]
    nothing = table().assign(fits=False)
    said += [str(drawn[1]), *outcome(lambda: draw(nothing, "lines:n,cycles", tmp_path / "x.png"), tmp_path)]
    golden(said)


@pytest.mark.parametrize("columns", [("a", "b"), ("a", "samples_per_second"), ("samples", "runs_per_second")])
def test_the_front_is_what_nothing_is_better_than(columns: tuple[str, str]) -> None:
    """The oracle compares each row with each."""
    values = np.random.default_rng(7).integers(0, 12, (40, 2))
    found = pareto_front(pd.DataFrame(values, columns=columns), *columns)
    costs = values * [-1 if name.startswith(("samples", "runs")) else 1 for name in columns]
    better = [((costs <= row).all(axis=1) & (costs < row).any(axis=1)).any() for row in costs]
    assert {*map(tuple, found.to_numpy())} == {
        tuple(row) for row, worse in zip(values, better, strict=True) if not worse
    }
    assert found[columns[0]].is_monotonic_increasing
    assert len(found) == len(found.drop_duplicates())


def test_tables(tmp_path: Path, golden: Golden) -> None:
    plain = table()
    for kind in ("csv", "json"):
        write_table(plain, tmp_path / f"t.{kind}")
        pd.testing.assert_frame_equal(read_table(tmp_path / f"t.{kind}"), plain, check_dtype=False)
    said = (tmp_path / "t.csv").read_text().splitlines()
    head, first, *_ = said
    texts = {"gone.csv": None, "empty.csv": "", "other.csv": "a,b\n1,2\n", "x.txt": "a"}
    texts |= {"version.csv": f"{head}\n{first[:-1]}2\n", "less.csv": f"{head.replace('ipus', 'gone')}\n{first}\n"}
    texts |= {"bad.json": "{", "list.json": "[1]"}
    for name, text in texts.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        said += [
            name,
            *(line.partition("sweep`: ")[0] for line in outcome(lambda n=name: read_table(tmp_path / n), tmp_path)),
        ]
    golden([*said, *(f"{name} {kind}" for name, kind in RESULTS.items())])


def test_runs_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "out")
    assert store.row("k") is None
    for number in (1, 2):
        store.write("k", {"n": number, "format": FORMAT})
        assert Store(tmp_path / "out").row("k") == {"n": number, "format": FORMAT}
    (store.runs / "k" / ".row.x.tmp").mkdir()
    assert [path.name for path in (Store(tmp_path / "out").runs / "k").iterdir()] == ["row.json"]
    monkeypatch.setattr(os, "replace", lambda file, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.write("k", {})
    assert store.row("k") == {"n": 2, "format": FORMAT}
    assert [path.name for path in (store.runs / "k").iterdir()] == ["row.json"]
    for text, message in (
        ("[]", "no row of `ipuperf sweep`; delete"),
        ("{", "no row .*: .*; delete"),
        ("{}", "of format None"),
    ):
        (store.runs / "k" / "row.json").write_text(text)
        with pytest.raises(SweepError, match=message):
            store.row("k")


# -- work --------------------------------------------------------------------------------------------------------------


def test_pieces(tmp_path: Path, golden: Golden) -> None:
    """Configurations of one program stay together; a piece is closed when it has its share."""
    (tmp_path / "s.py").touch()
    said = []
    for machines, count in ((1, 0), (1, 1), (1, 9), (2, 5), (3, 8)):
        factors = {"machine": ("pod4", "pod16", "gc200-1")[:machines], "n": tuple(range(max(count, 1)))}
        sweep = Sweep(factors, "s.py", ("{n}",), folder=str(tmp_path))
        for jobs in (1, 2, 7):
            pieces = run._pieces(sweep, sweep.configurations()[: machines * count], jobs)
            said.append(f"{machines} x {count}, {jobs} jobs: {[[each['n'] for each in piece] for piece in pieces]}")
    golden(said)


def test_rows_of_failures(golden: Golden) -> None:
    row = work.failed({"n": 1}, "a\n b" + "x" * 3000, 0.25)
    assert (row["n"], len(row["failure"]), row["failure"][:5], row["took_seconds"], row["format"]) == (
        1,
        2000,
        "a bxx",
        0.25,
        FORMAT,
    )
    assert work.failed({}, "a")["took_seconds"] == 0
    errors = (SweepError("own"), SweepError(""), ValueError("other"), ValueError())
    assert [work.error_text(error) for error in errors] == ["own", "SweepError: ", "ValueError: other", "ValueError: "]


class Thread:
    """A process that is a thread: it dies where a configuration says so, and its pipe with it."""

    made: list[Thread]

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        assert daemon
        self.exitcode: int | None = None
        self.killed = False
        self.beside = 1 + sum(process.exitcode is None for process in Thread.made)
        self.thread = threading.Thread(target=self._run, args=(target, *args), daemon=True)
        Thread.made.append(self)

    def _run(self, target: Callable[..., None], pipe: Any, sweep: Any) -> None:
        try:
            target(pipe, sweep)
            self.exitcode = 0
        except SystemExit as end:
            self.exitcode = int(end.code or 0)
        finally:
            pipe.close()

    def start(self) -> None:
        self.thread.start()

    def join(self, timeout: float | None = None) -> None:
        self.thread.join(timeout)

    def kill(self) -> None:
        self.killed = True


class Ends:
    """The child's end of a pipe, which the parent closes once before a thread does."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.closed = pipe, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pipe, name)

    def close(self) -> None:
        self.closed += 1
        if self.closed == 2:
            self.pipe.close()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Workers are threads; their rows are made up, and a configuration with ``dies`` ends its worker so often."""
    Thread.made = []
    left: dict[int, int] = {}

    class Context:
        Process = Thread

        @staticmethod
        def Pipe() -> tuple[Any, Any]:
            ours, theirs = multiprocessing.Pipe()
            return ours, Ends(theirs)

    def rows(sweep: Any, piece: Sequence[Configuration]) -> Iterator[dict[str, Any]]:
        for each in piece:
            if left.setdefault(each["n"], each["dies"]):
                left[each["n"]] -= 1
                raise SystemExit(-9 if each["n"] % 2 else 3)
            yield {"n": each["n"]}

    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda kind: Context)
    monkeypatch.setattr(processes, "rows", rows)
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("jobs", [1, 2, 9])
@pytest.mark.usefixtures("threads")
def test_workers_that_die(tmp_path: Path, jobs: int) -> None:
    """What one was at is tried once more; what it had not begun goes to another."""
    (tmp_path / "s.py").touch()
    sweep = Sweep({"n": tuple(range(8))}, "s.py", ("{n}",), folder=str(tmp_path))
    dies = {2: 1, 3: 2, 4: 9, 6: 1}
    pieces = [[{"n": n, "dies": dies.get(n, 0), "seed": 0} for n in piece] for piece in ((0, 1), (2, 3, 4), (5, 6, 7))]
    found = {row["n"]: row.get("failure") for row in processes.in_processes(sweep, pieces, jobs)}
    failure = "its worker process was killed 2 times "
    assert found == {**dict.fromkeys((0, 1, 2, 5, 6, 7)), 3: f"{failure}(signal 9)", 4: f"{failure}(exit code 3)"}
    assert all(process.killed or process.exitcode for process in Thread.made)
    assert gc.get_threshold()[0] == 500_000
    assert max(process.beside for process in Thread.made) == min(jobs, 3)


@pytest.mark.usefixtures("threads")
def test_a_worker_that_ends_before_its_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(pipe: Any, sweep: Any) -> None:
        raise SystemExit(7)

    monkeypatch.setattr(processes, "_work", ends)
    with pytest.raises(
        SweepError, match=r"^a worker process ended before its work \(exit code 7\); in a Python script"
    ):
        list(processes.in_processes(None, [[{"n": 0, "dies": 0}]], 1))
    assert not processes._Crew(None, deque()).busy
    assert [processes._how(code) for code in (None, 0, 3, -9)] == [
        "(exit code None)",
        "(exit code 0)",
        "(exit code 3)",
        "(signal 9)",
    ]
