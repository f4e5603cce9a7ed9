"""Every figure of every preset, as loaded and as text, and what the loader says to changes of each of them."""

from pathlib import Path
from typing import Any

import pytest
from answers import answer, asked, listed, shown, together
from rows import Golden

from ipuperf import machine as room
from ipuperf.machine import describe, figures, list_machines, load_machine, load_scaled, schema
from ipuperf.machine.topology import Topology

KINDS = ("chip", "ipu_machine", "host")
LENGTHS = {"chip": 30, "ipu_machine": 20, "host": 10}


@pytest.mark.parametrize("name", list_machines())
def test_every_preset(name: str, golden: Golden) -> None:
    machine = load_machine(name)
    answers = describe.as_dict(machine)
    links = shown(answers.pop("links"))
    golden([{key: shown(value) for key, value in answers.items()}, links, describe.describe(machine)])


def _ways(topology: Topology) -> list[Any]:
    """All that a topology answers, of some of its IPUs."""
    some = sorted({0, min(1, topology.ipus - 1), topology.ipus // 2, topology.ipus - 1})
    names = lambda links: [link.name for link in links]  # noqa: E731
    return [
        [(topology.rack(ipu), topology.neighbours(ipu), names(topology.host_route(ipu, to_host=True)),
          names(topology.host_route(ipu, to_host=False))) for ipu in some],
        [(a, b, topology.reaches(a, b), names(topology.route(a, b))) for a in some for b in some],
        [topology.ring(some)] if topology.reaches(0, topology.ipus - 1) else [],
    ]  # fmt: skip


@pytest.mark.parametrize("name", list_machines())
def test_every_way(name: str, golden: Golden) -> None:
    topology = load_machine(name).topology
    golden([f"{topology.racks} racks", describe.draw_topology(topology), shown(_ways(topology))])


@pytest.mark.parametrize("key", load_machine("pod128").figures)
def test_every_figure_changed(key: str, golden: Golden, tmp_path: Path) -> None:
    """Twice and half of it by factor; in a user's file one more, none, and more than can be."""
    name = "pod4" if key in load_machine("pod4").figures else "pod128"  # quicker
    base = load_machine(name)
    value, unit = base.figures[key].value, base.figures[key].unit
    dimension = schema.FIGURES[schema.canonical(key)]
    most = figures.LARGEST["time" if dimension == "latency" and unit != "cycles" else dimension]
    scale = figures.UNITS[dimension][unit]

    def changes(machine: Any) -> str:
        before, after = describe.as_dict(base), describe.as_dict(machine)
        moved = {}
        for part in KINDS:
            moved |= {k: v for k, v in after[part].items() if v != before[part][k]}
        return shown(moved) + (" links" if after["links"] != before["links"] else "")

    def written(number: Any) -> str:
        text = f'{{ value = {number}, unit = "{unit}", source = "me", kind = "assumed" }}'
        (path := tmp_path / "mine.toml").write_text(f'extends = "{name}"\n{key} = {text}\n')
        return changes(load_machine(path))

    row = {f"x{factor}": answer(lambda f=factor: changes(load_scaled(name, {key: f}))) for factor in (2, 0.5)}
    tried = {"more": value + 1, "none": 0, "most": float(most / scale) if most / scale % 1 else int(most / scale)}
    tried["beyond"] = tried["most"] + 1
    row |= {which: answer(lambda n=number: written(n)) for which, number in tried.items()}
    golden({which: text.replace("mine.toml: ", "")[:160] for which, text in row.items()})


CALLS = """
list_machines()
preset_ipus()
[load_scaled("pod4", {"chip.clock": f}).chip.clock_hz for f in (1, 2, 0.5)]
load_scaled("pod4", {"chip.clock": 0})
load_scaled("pod4", {"chip.clok": 2})
load_scaled("pod4", {"chip.clock": "2"})
load_scaled("pod4", {"chip.clock": True})
load_scaled("pod4", {"chip.clock": float("inf")})
load_scaled("pod4", {"chip.clock": float("nan")})
load_scaled("gc2-1", {"ipu_machine.ddr_bandwidth": 2})
load_scaled("pod5", {})
load_scaled("pod4", {"ipu_machine.link_efficiency": 2}).ipu_machine.link_efficiency
load_scaled("pod4", {"chip.tiles": 0.0001}).chip.tiles
load_scaled("pod4", {"chip.bytes_per_tile": 0.5}).chip.original.bytes_per_tile
pod4.chip.with_tiles(100).tiles, pod4.chip.with_tiles(100).original
load_scaled("pod4", {"chip.tiles": 2}).chip.with_tiles(100).original.tiles
load_machine("pod65")
load_machine("nothing.toml")
load_machine("nothing/x")
load_machine(3)
load_machine(Path("/nothing/pod4"))
pod4.place(1, 1)
pod4.place(2, 2)
pod4.place(4, 1)
pod4.place(1, 3)
pod4.place(3, 1)
pod4.place(5, 1)
pod4.place(1, 5)
pod4.place(3, 3)
pod4.place(0, 1)
pod4.place(1, 0)
pod4.place(4096, 1)
[pod4.chip.vector_width(n) for n in (1, 2, 4, 8)]
pod4.chip.vector_width(3)
[pod4.chip.peak_flops_per_cycle(n) for n in (1, 2, 4, 8)]
pod4.chip.memory_bytes, pod4.chip.exchange_bandwidth_bytes_per_s
pod4.chip.cycles(-1e-9)
pod4.chip.cycles(float("nan"))
[pod4.chip.cycles(s) for s in (0, 1e-9, 1, 1 / 3, 7 / 1325000000, 2.0000001 / 1325000000)]
pod4.chip.seconds(1325000000)
[pod4.host.start_seconds(f, p) for f in (True, False) for p in (1, 2, 4)]
pod4.host.start_seconds()
pod4.chip.rearrangement.cycles({})
[pod4.chip.rearrangement.cycles({n: 1000}) for n in (8, 4, 2, 1)]
pod4.chip.rearrangement.cycles({8: 7, 4: 5, 2: 3, 1: 1})
gc2.ipu_machine.require_streaming_memory()
gc2.ipu_machine.ddr_capacity_bytes
gc2.ipu_machine.streaming_memory, gc2.absences
pod4.ipu_machine.ddr_bandwidth_bytes_per_s, pod4.ipu_machine.ddr_capacity_bytes, pod4.ipu_machine.remote_transfer_seconds, pod4.ipu_machine.remote_packet_bytes
describe.summary([("a", pod4), ("b", gc2)])
describe.describe(gc2)
describe.describe(c600)
describe.describe(pod4)
describe.draw_topology(c600.topology)
describe.draw_topology(pod4.topology)
describe.draw_topology(pod16.topology)
describe.draw_topology(load_machine("pod128").topology)
pod4.topology.route(0, 4)
pod4.topology.route(-1, 0)
pod4.topology.link("ipu0", "ipu3")
pod4.topology.link("ipu0", "ipu1")
pod4.topology.ring([0])
pod4.topology.ring([])
pod4.topology.ring([0, 0])
pod4.topology.ring([0, 4])
[pod16.topology.ring(range(n)) for n in (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)]
[pod16.topology.ring(range(0, 16, n)) for n in (2, 3, 4, 5, 8)]
[pod16.topology.hops(0, n) for n in range(16)]
[pod16.topology.rack(n) for n in (0, 15)]
[load_machine("pod128").topology.rack(n) for n in (0, 63, 64, 127)]
[l.name for l in load_machine("pod256").topology.route(0, 200)]
[l.name for l in load_machine("pod256").topology.route(65, 130)]
FrozenMapping({"a": 1})
FrozenMapping({"a": 1})["b"]
list(FrozenMapping({"b": 1, "a": 2})), len(FrozenMapping({}))
[{unit: str(factor) for unit, factor in units.items()} for units in UNITS.values()]
dict(LARGEST)
[scaled_figure(Figure(v, u, "s", "assumed"), d, f).value for v, u, d, f in ((3, "KiB", "size", 0.5), (1, "count", "count", 0.2), (60, "percent", "ratio", 2), (3, "cycles", "latency", 0.5), (3, "us", "latency", 0.5), (2, "GB/s", "bandwidth", 0.3))]
[str(base_value(Figure(v, u, "s", "assumed"), d)) for v, u, d in ((1.5, "GHz", "frequency"), (2, "KiB", "size"), (8, "Gbit/s", "bandwidth"), (3, "ns", "time"), (7, "cycles", "latency"), (7, "ns", "latency"), (50, "percent", "ratio"))]
read_figure("here", {"value": 1, "unit": "Hz", "source": "s", "kind": "assumed"}, "frequency", False)
read_figure("here", {"value": 0.5, "unit": "Hz", "source": "s", "kind": "assumed"}, "frequency", False)
read_figure("here", {"value": 0, "unit": "s", "source": "s", "kind": "assumed"}, "time", False)
read_figure("here", {"value": -1, "unit": "s", "source": "s", "kind": "assumed"}, "time", False)
read_figure("here", {"value": 10 ** 400, "unit": "s", "source": "s", "kind": "assumed"}, "time", False)
read_figure("here", {"value": 1.5, "unit": "cycles", "source": "s", "kind": "assumed"}, "latency", False)
read_figure("here", {"value": 1.5, "unit": "KiB", "source": "s", "kind": "assumed"}, "size", False)
read_figure("here", {"value": 100, "unit": "percent", "source": "s", "kind": "assumed"}, "ratio", False)
read_figure("here", {"value": 101, "unit": "percent", "source": "s", "kind": "assumed"}, "ratio", False)
read_figure("here", {"absent": "why", "source": "s"}, "size", True)
read_figure("here", {"absent": "why", "source": "s"}, "size", False)
read_figure("here", {"absent": "", "source": "s"}, "size", True)
read_figure("here", {"absent": "why", "source": "s", "kind": "x"}, "size", True)
read_figure("here", 7, "size", True)
[canonical(k) for k in ("chip.tiles", "ipu_machine.bundles.a.links", "ipu_machine.bundles", "chip.bundles.a", "ipu_machine.cables.b.between")]
[len(allowed_keys(room)) for room in ("chip", "ipu-machine", "host", "machine")]
"""  # noqa: E501
FIGURE = '{{ value = {}, unit = "{}", source = "me", kind = "assumed" }}'
FILES = {
    "a bundle twice": '[ipu_machine.bundles.twin]\nbetween = [0, 1]\nlinks = ' + FIGURE.format(0, "count"),
    "more links than ports": '[ipu_machine.bundles.rung0]\nbetween = [0, 1]\nlinks = ' + FIGURE.format(7, "count"),
    "no figure": "[ipu_machine.bundles.rung0]\nlinks = 3\n",
    "5 IPUs": "[system]\nipus = " + FIGURE.format(5, "count"),
    "3 IPUs": "[system]\nipus = " + FIGURE.format(3, "count"),
    "1 IPU": "[system]\nipus = " + FIGURE.format(1, "count"),
    "2 machines, single": "[system]\nipu_machines = " + FIGURE.format(2, "count"),
    "2 machines, torus": '[system]\nwiring = "torus"\nipu_machines = ' + FIGURE.format(2, "count"),
    "8 IPUs in a ladder": '[system]\nwiring = "ladder"\nipu_machines = ' + FIGURE.format(2, "count") + "\nipus = "
    + FIGURE.format(8, "count"),
    "12 IPUs in a torus": '[system]\nwiring = "torus"\nipu_machines = ' + FIGURE.format(3, "count") + "\nipus = "
    + FIGURE.format(12, "count"),
    "2 racks": "[system]\nracks = " + FIGURE.format(2, "count"),
    "4096 IPUs": '[system]\nwiring = "torus"\nipu_machines = ' + FIGURE.format(1024, "count") + "\nipus = "
    + FIGURE.format(4096, "count"),
    "2049 machines": '[system]\nwiring = "torus"\nipu_machines = ' + FIGURE.format(513, "count") + "\nipus = "
    + FIGURE.format(2049, "count"),
    "another name": 'name = "x"\ndescription = "y"\n',
    "a bow chip": '[parts]\nchip = "bow"\n',
    "a latency of 10 ns": "[chip]\nsync = " + FIGURE.format(10, "ns"),
    "a key with a space": '"a b" = 1\n',
    "a base that is none": 'x = 1\n',
    "a deep table": "[a.b.c]\nx = 1\n",
    "a list": "[[chip]]\nx = 1\n",
}  # fmt: skip


@together(listed(CALLS))
def test_every_answer(cases: list[str], golden: Golden) -> None:
    names = {**vars(room), **vars(room.loader), **vars(figures), **vars(schema), "describe": describe, "Path": Path}
    presets = {"gc2": "gc2-1", **{name: name for name in ("pod4", "pod16", "c600")}}
    names |= {key: load_machine(name) for key, name in presets.items()}
    golden({case: asked(case, names) for case in cases})


@pytest.mark.parametrize("base", ["pod4", "gc2-1"])
def test_every_file(base: str, golden: Golden, tmp_path: Path) -> None:
    answers = {}
    for name, file in FILES.items():
        (path := tmp_path / "mine.toml").write_text(f'extends = "{base}"\n{file}')
        answers[name] = answer(lambda path=path: describe.describe(load_machine(path)))
    golden(answers)
