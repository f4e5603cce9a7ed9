"""What records, measures, assertions, comparisons and files say of real traces and of damaged ones, kept as text."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import digest
import numpy as np
import pytest
from rows import Golden

from ipuperf.testing import BaselineError, assertions, measures, tables
from ipuperf.testing.compare import Tolerance, check_sections, moved_sections
from ipuperf.testing.files import read_record, text_of
from ipuperf.testing.fixture import CycleBaseline, Ledger, stem_of
from ipuperf.testing.record import OpFigures, Record, record
from ipuperf.testing.subject import trace_of
from ipuperf.testing.text import moved_text
from ipuperf.trace import TABLES, Trace

from .conftest import build_trace

GOLDEN = Path(__file__).parents[1] / "golden"
TRACES = ("loop", "overlapped", "pipeline", "sharded")


def outcome(call: Callable[[], Any]) -> list[str]:
    """What a call gives, or the kind and the text of its error."""
    try:
        return digest.lines(call())
    except (AssertionError, ValueError, TypeError, BaselineError) as error:
        return f"{type(error).__name__}: {error}".splitlines()


@cache
def trace(name: str) -> Trace:
    if name == "by-hand":
        steps = [(0, 0, 0, 10, 30, "compute", "main/MatMul.1"), (0, 0, 1, 20, 30, "host_mid", "main/HostLoad.2")]
        steps += [(0, 1, 0, 0, 40, "link", "main/IpuCopy.3"), (0, 1, 0, 40, 0, "compute", "main/Add.4")]
        steps += [(1, 0, 0, 5, 20, "idle", ""), (1, 0, 0, 25, 15, "host_begin", "main/HostLoad.2")]
        steps += [(1, 0, 1, 60, 10, "remote_load", "main/Load.5"), (1, 1, 0, 0, 9, "host_run", "")]
        steps += [(1, 1, 0, 9, 41, "sync_external", "main/IpuCopy.3"), (1, 1, 0, 50, 7, "compute", "main(2)/Add.12")]
        tiles = [(0, 0, "constant", 300), (0, 0, "vertexCode", 0), (0, 1, "constant", 900), (0, 1, "stack", 200)]
        tiles += [(1, 3, "constant", 999)]
        held = [("w", 0, 0, 2, 600), ("b", 0, 1, 2, 77), ("c", 0, 1, 4, 33), ("d", 1, 3, 4, 9)]
        moved = [("p2p", "gateway", 7), ("p2p", "ipu_link", 11), ("all_gather", "ipu_link", 5)]
        return build_trace(steps, [(0, 40), (40, 60)], tiles, held, moved, replicas=2, ipuperf_version="1.2.3")
    return Trace.load(GOLDEN / "report" / f"{name}.ipt")


def columns(found: Trace) -> dict[str, Any]:
    return {name: found.columns(name) for name in TABLES}


# -- records and measures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TRACES, "by-hand"])
def test_record(name: str, golden: Golden) -> None:
    header = {"ipuperf_version": "0", "schema_version": 0}
    found = record(trace(name))
    golden(text_of(replace(found, header={**found.header, **header})).splitlines())


PAIRS = (("links", "compute"), ("compute", "links"), ("host", "compute"), (("exchange", "compute"), "host_mid"))
PAIRS += (("ddr", ("compute", "exchange", "links")), ("compute", "compute"), ("work", "compute"), ((), "compute"))
PAIRS += (("links",), "links", (("host", "host_mid"), "ddr"))


@pytest.mark.parametrize("name", [*TRACES, "by-hand"])
def test_measures_and_assertions(name: str, golden: Golden) -> None:
    """Each measure, and the message of each assertion on both sides of its bound."""
    found, said = trace(name), []
    for host in (False, True):
        share = measures.bubble(found, host)
        said += [f"bubble {share.part} of {share.whole}", *outcome(lambda s=share: list(s.contributors))]
        for bound in (share.value, np.nextafter(share.value, 0), 1):
            said += outcome(lambda b=bound, h=host: assertions.assert_bubble(found, b, waiting_for_host=h))
    for pair in PAIRS:
        said += [f"overlap {pair}", *outcome(lambda p=pair: measures.overlap(found, p))]
        for bound in (1, 0):
            said += outcome(lambda p=pair, b=bound: assertions.assert_overlap(found, p, b))
    rate = measures.throughput(found, 12)
    for bound in (rate, 1.25 * rate):
        said += outcome(lambda b=bound: assertions.assert_throughput(found, b, 12))
    peak = found.summary()["memory"]["max_tile"]
    for bound in (0, *((peak["bytes"] - 1, peak["bytes"]) if peak else ())):
        said += outcome(lambda b=bound: assertions.assert_peak_tile_bytes(found, b))
    small = Trace({**found.meta, "bytes_per_tile": 500}, columns(found))
    said += [*outcome(lambda: assertions.assert_fits(found)), *outcome(lambda: assertions.assert_fits(small))]
    golden(said)


WRONG_BOUNDS = (-1, -0.0, 0, 1, True, float("nan"), float("inf"), "3", None, np.float32(0.5), 1.0000001)


def test_refused_bounds(golden: Golden) -> None:
    found, said = trace("by-hand"), []
    calls: Mapping[str, Callable[[Any], Any]] = {"peak": lambda v: assertions.assert_peak_tile_bytes(found, v)}
    calls |= {"bubble": lambda v: assertions.assert_bubble(found, v)}
    calls |= {"overlap": lambda v: assertions.assert_overlap(found, ("links", "compute"), v)}
    calls |= {"throughput": lambda v: assertions.assert_throughput(found, v, 3)}
    calls |= {"samples": lambda v: measures.throughput(found, v), "rtol": lambda v: str(Tolerance(v))}
    calls |= {"atol": lambda v: str(Tolerance(0.5, v))}
    for name, call in calls.items():
        for value in WRONG_BOUNDS:
            shown = value if not isinstance(value, np.generic) else f"{value.item()} of NumPy"
            said += [
                f"{name} {shown!r}",
                *(line.replace(repr(value), f"{shown!r}") for line in outcome(lambda v=value, c=call: c(v))),
            ]
    empty = build_trace([])
    with pytest.raises(ValueError, match="no run that takes time"):
        measures.throughput(build_trace([], runs=[(0, 0)]), 1)
    said += [*outcome(lambda: measures.throughput(empty, 1)), *outcome(lambda: measures.bubble(empty))]
    said += outcome(lambda: measures.overlap(empty, ("links", "compute")))
    said += outcome(lambda: assertions.assert_fits(empty))
    for only in (None, (), ("cycles",), ("operations", "memory"), ("cycle",), "cycles", ("system",)):
        said += [f"only {only}", *outcome(lambda o=only: check_sections(o))]
    golden(said)


@pytest.mark.parametrize("seed", range(4))
def test_intervals_are_sets_of_moments(seed: int) -> None:
    """The oracle: an array with a place for each cycle."""
    generator = np.random.default_rng(seed)
    start = generator.integers(0, 40, 6 * seed)
    end = start + generator.integers(-1, 9, 6 * seed)
    moments = np.array([any(a <= t < b for a, b in zip(start, end)) for t in range(60)], dtype=bool)
    found = measures.union(start, end)
    assert [any(a <= t < b for a, b in zip(*found)) for t in range(60)] == moments.tolist()
    assert all(a < b for a, b in zip(*found))
    assert all(b < a for b, a in zip(found[1][:-1], found[0][1:]))
    assert measures.length(found) == moments.sum()
    places = np.arange(50)
    for width in (0, 1, 10):
        wanted = [moments[t : t + width].sum() for t in places]
        assert measures.covered(places, places + width, found).tolist() == wanted


# -- comparisons -------------------------------------------------------------------------------------------------------


def changed(found: Record) -> Iterator[tuple[str, Record]]:
    """A record as other programs would have it."""
    ops = found.operations
    more = OpFigures("main", "Gelu", 1, 2, 1234)
    yield "the same", found
    yield "an op more", replace(found, operations=(*ops[:1], more, *ops[1:]))
    yield "an op less", replace(found, operations=ops[1:])
    yield "other calls", replace(found, operations=(replace(ops[0], calls=ops[0].calls + 1000), *ops[1:]))
    slower = tuple(replace(op, cycles=op.cycles + op.cycles // 50 + 1) for op in ops)
    cycles = {name: each + each // 50 for name, each in found.figures["cycles"].items()}
    yield "slower", replace(found, operations=slower, figures={**found.figures, "cycles": cycles})
    less = {name: value for name, value in found.figures["memory"].items() if "fullest" not in name}
    yield "other memory", replace(found, figures={**found.figures, "memory": {**less, "IPU 9: new": 5}})
    yield "other system", replace(found, figures={**found.figures, "system": {"IPUs": 7}, "transfers": {}})


@pytest.mark.parametrize("name", ["loop", "by-hand"])
def test_differences(name: str, golden: Golden) -> None:
    before, said = record(trace(name)), []
    for change, after in changed(before):
        for tolerance, only, rows in (
            (Tolerance(), None, 20),
            (Tolerance(0.02, 1), None, 1),
            (Tolerance(), ("memory",), 2),
        ):
            for pair in ((before, after), (after, before)):
                moved = moved_sections(*pair, tolerance, only)
                said += [f"-- {change}, {tolerance}, {only}, {rows}", *moved_text(moved, rows).splitlines()]
    golden(said)


TABLE = [
    {"name": "a", "x": "1", "y": "2.5"},
    {"name": "b", "x": "0", "y": "text"},
    {"name": "c", "x": "-3", "y": "1e3"},
]
OTHERS = (TABLE[:2], TABLE[::-1], [*TABLE, {"name": "d", "x": "7", "y": "8"}], [{**TABLE[0], "x": "1.01"}, *TABLE[1:]])
OTHERS += ([TABLE[0], {**TABLE[1], "x": "1"}, {**TABLE[2], "x": "-3.03", "y": "1010"}],)
OTHERS += ([{**row, "z": "1"} for row in TABLE], [{"name": row["name"], "x": row["x"]} for row in TABLE])
OTHERS += ([TABLE[0], {**TABLE[1], "y": "3"}, TABLE[2]],)


def test_tables(tmp_path: Path, golden: Golden) -> None:
    said = []
    for other in OTHERS:
        for tolerance in (None, Tolerance(0.01), Tolerance(0.0, 0.03)):
            for pair in ((TABLE, other), (other, TABLE)):
                lines = tables.moved(*pair, ["name"], tolerance)
                said += [f"-- {tolerance}", *tables.report("t", lines, 1).splitlines(), *lines]
    for keys in ((), ("x",), ("name", "x"), ("gone",)):
        for rows in (TABLE, [], [*TABLE, TABLE[0]], [TABLE[0], {"name": "b"}], [{"name": 1, "x": None}]):
            said += [f"{keys} {len(rows)}", *outcome(lambda r=rows, k=keys: tables.normalised(r, k))]
    file = tmp_path / "t.csv"
    for text in (tables.text_of([{"name": "=1+2", "x": "-5"}]), "name,x\na,1\nb\n", "name,x\na,1,2\n", "name,x\n", "",
                 "x\n1\n",                 'name\n"a\n', "name,x\na,1\na,2\n"):  # fmt: skip
        file.write_text(text)
        said += [
            repr(text),
            *(line.replace(str(file), "FILE") for line in outcome(lambda: tables.read(file, ["name"]))),
        ]
    golden(said)


# -- files -------------------------------------------------------------------------------------------------------------

CHANGES: tuple[tuple[str, Any], ...] = (("format", "another"), ("format", None), ("format_version", 2))
CHANGES += (("format_version", "1"), ("header", 3), ("header", None), ("header.machine", 3), ("header.machine", None))
CHANGES += (("header.schema_version", True), ("header.program", 0), ("header.tiles_per_ipu", None))
CHANGES += (("header.clock_hz", None), ("system", None), ("cycles", []), ("cycles.total", "7"), ("memory", {"x": True}))
CHANGES += (("operations", {}), ("operations", None), ("operations.0", 3), ("operations.0.calls", "1"))
CHANGES += (("operations.0.calls", False), ("operations.0.scope", 1), ("operations.0.cycles", None))
CHANGES += (("operations.0.more", 1), ("header.more", 1), ("operations.0.cycles", 5))


def test_damaged_files(tmp_path: Path, golden: Golden) -> None:
    said, file = [], tmp_path / "kept.json"
    plain = text_of(record(trace("by-hand")))
    for place, value in CHANGES:
        data: Any = json.loads(plain)
        *outer, last = (int(part) if part.isdigit() else part for part in place.split("."))
        inner = data
        for part in outer:
            inner = inner[part]
        inner[last] = value
        if value is None:
            del inner[last]
        file.write_text(json.dumps(data))
        said.append(f"{place}: {value!r}")
        said += [line.replace(str(file), "FILE") for line in outcome(lambda: str(read_record(file).operations))]
    for text in ("", "{", "[]", "[" * 100_000):
        file.write_text(text)
        said.append(outcome(lambda: read_record(file))[0].replace(str(file), "FILE").partition(" read:")[0])
    golden([line[:400] for line in said])


def test_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """A baseline that is missing, written, alike, of another machine or version, moved; names; tables."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    ledger, plain = Ledger(), trace("by-hand")

    def made(update: bool, test: str = "test_a.py::test_b") -> CycleBaseline:
        return CycleBaseline(test, "test_a.test_b", tmp_path / "kept", update, "pytest --update", ledger)

    def told(name: str, call: Callable[[], Any]) -> None:
        said.extend([f"-- {name}", *(line.replace(str(tmp_path), "THERE") for line in outcome(call))])

    told("missing", lambda: made(False).check(plain))
    for _ in range(2):
        told("written", lambda: made(True).check(plain))
    told("alike", lambda: made(False).check(plain))
    told("twice", lambda: [one := made(False), one.check(plain), one.check(plain)][:0])
    told("of another test", lambda: made(False, "test_a.py::test_c").check(plain))
    for change in ({"machine": "other"}, {"clock_hz": 5}, {"num_ipus": 9}, {"ipuperf_version": "99.1"},
                   {"tiles_per_ipu": 8}, {"ipuperf_version": "1.3"}, {"program": "p"}):  # fmt: skip
        other = Trace({**plain.meta, **change}, columns(plain))
        told(f"{change}", lambda o=other: made(False).check(o))
    half = build_trace([(0, 0, 0, 0, 40, "compute", "main/MatMul.1")], [(0, 40)], ipuperf_version="1.2.4")
    for options in ({}, {"rows": 1}, {"only": ["memory"], "rtol": 0.5}, {"rtol": 1.0, "atol": 1e9}, {"rows": 0},
                    {"rows": True}, {"rtol": -1}, {"only": ["work"]}, {"name": "a b"}, {"name": ""},
                    {"name": ".x"}):  # fmt: skip
        told(f"{options}", lambda o=options: made(False).check(half, **o))
    (tmp_path / "kept" / "test_a.test_b.step.json").write_text("{")
    told("damaged", lambda: made(False).check(plain))
    for table, update in ((TABLE, False), (TABLE, True), (TABLE, False), (OTHERS[3], False)):
        told(f"table {update}", lambda t=table, u=update: made(u).check_table(t, "t", keys=["name"], rows=1))
    told("table within", lambda: made(False).check_table(OTHERS[3], "t", keys=["name"], rtol=0.02))
    told("table elsewhere", lambda: made(True).check_table(TABLE, "t", keys=["name"], folder=tmp_path / "there"))
    told("name of a table", lambda: made(True).check_table(TABLE, "t/u", keys=["name"]))
    said += [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.*"))]
    said += [f"{path.name} {how}" for path, how in ledger.written] + [f"unchanged {ledger.unchanged}"]
    for length in (100, 107, 108, 200):
        said.append(CycleBaseline("t", "s" * length, Path("f"), False, "", ledger).path("step.b-c_1").name)
    said += [stem_of("a b", "test[x/y-é]"), stem_of("test_a", "-T.test[1.5, 2]--")]
    golden(said)


def test_what_has_a_trace(golden: Golden) -> None:
    """Objects that lead to a trace, or do not."""

    class Held:
        def __init__(self, name: str = "", **attributes: Any) -> None:
            self.name = name
            self.__dict__.update(attributes)

    plain, said = trace("by-hand"), []
    ways = {
        "itself": plain, "trace": Held(trace=plain), "executable": Held(executable=Held(trace=plain)),
        "program": Held(program=Held(executable=Held(trace=plain))),
        "model": Held(compiled_model=Held(executable=plain)),
        "four deep": Held(program=Held(executable=Held(compiled_model=Held(trace=plain)))),
        "five deep": Held(program=Held(executable=Held(compiled_model=Held(program=Held(trace=plain))))),
        "not compiled": Held("it", compiled_model=None), "not compiled inside": Held(program=Held(executable=None)),
        "both": Held(executable=None, program=Held(trace=plain)), "none": None, "a class": Held, "a text": "x",
        "another trace": Held(trace=3), "round": (circle := Held("round")),
    }  # fmt: skip
    circle.program = circle
    for name, subject in ways.items():
        said += [name, *outcome(lambda s=subject: str(trace_of(s) is plain))]
    golden(said)


def test_names_of_the_package() -> None:
    """Each is that of the module which has it; others are said to be missing."""
    import ipuperf.testing

    for name in ipuperf.testing.__all__:
        assert getattr(ipuperf.testing, name).__module__.startswith(("ipuperf.tools.testing", "ipuperf.tools.errors"))
    with pytest.raises(AttributeError, match="nothing"):
        ipuperf.testing.nothing  # noqa: B018
