"""Figures of the presets against published ones, unit conversion, and the clock."""

import json
import pickle
import re
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.machine import KINDS, MachineError, list_machines, load_machine
from ipuperf.machine.describe import as_dict, describe
from ipuperf.machine.figures import LARGEST, UNITS, Figure, base_value
from ipuperf.machine.schema import FIGURES, STREAMING_MEMORY, canonical

POD4 = load_machine("pod4")
BOW = load_machine("bow-pod4")
GC2 = load_machine("gc2-1")

#: Figures that only a machine of several racks needs.
SEVERAL_RACKS = (
    "system.racks",
    "ipu_machine.gw_links",
    "ipu_machine.gw_link_bandwidth",
    "ipu_machine.gw_link_latency",
)


def test_presets_in_natural_order_and_named_as_their_files():
    names = list_machines()
    assert names.index("pod4") < names.index("pod16") < names.index("pod64")
    assert set(names) >= {"gc2-1", "gc200-1", "pod4", "pod16", "pod64", "bow-1", "bow-pod4", "bow-pod16", "bow-pod64"}
    assert [load_machine(name).name for name in names] == names


@pytest.mark.parametrize(
    ("name", "ipus", "ipu_machines", "chip"),
    [
        ("gc2-1", 1, 1, "GC2"),
        ("gc200-1", 1, 1, "GC200"),
        ("pod4", 4, 1, "GC200"),
        ("pod16", 16, 4, "GC200"),
        ("pod64", 64, 16, "GC200"),
        ("bow-1", 1, 1, "Bow"),
        ("bow-pod4", 4, 1, "Bow"),
        ("bow-pod16", 16, 4, "Bow"),
        ("bow-pod64", 64, 16, "Bow"),
    ],
)
def test_sizes_of_the_presets(name, ipus, ipu_machines, chip):
    machine = load_machine(name)
    assert (machine.num_ipus, machine.num_ipu_machines, machine.chip.name) == (ipus, ipu_machines, chip)
    assert machine.topology.ipus == ipus


def test_memory_of_the_chips():
    assert POD4.chip.bytes_per_tile == BOW.chip.bytes_per_tile == 638_976
    assert GC2.chip.bytes_per_tile == 262_144
    assert POD4.chip.memory_bytes == 897 * 2**20
    assert GC2.chip.memory_bytes == 304 * 2**20
    assert POD4.chip.non_interleaved_bytes == 0x80000 - 0x4C000
    assert POD4.chip.interleaved_bytes == 0xE8000 - 0x80000
    assert (GC2.chip.non_interleaved_bytes, GC2.chip.interleaved_bytes) == (2**17, 2**17)
    assert {m.chip.memory_element_bytes for m in (POD4, BOW, GC2)} == {16384}


def test_clocks_tiles_and_architectures():
    assert [m.chip.clock_hz for m in (GC2, POD4, BOW)] == [1_600_000_000, 1_325_000_000, 1_850_000_000]
    assert [m.chip.tiles for m in (GC2, POD4, BOW)] == [1216, 1472, 1472]
    assert [m.chip.architecture for m in (GC2, POD4, BOW)] == ["ipu1", "ipu2", "ipu21"]
    assert {m.chip.workers for m in (POD4, BOW, GC2)} == {6}


def test_exchange_is_the_8_terabytes_per_second_of_the_data_sheet():
    assert POD4.chip.exchange_bandwidth_bytes_per_s == pytest.approx(8e12, rel=0.03)
    assert POD4.chip.exchange_bytes_per_cycle == 4
    assert 30 <= POD4.chip.exchange_setup_cycles <= 160
    assert (POD4.chip.sync_cycles, POD4.chip.external_sync_cycles) == (118, 600)


@pytest.mark.parametrize(
    ("machine", "f16_tera", "f32_tera"), [(GC2, 124.5, 31.1), (POD4, 249.7, 62.4), (BOW, 348.5, 87.2)]
)
def test_peak_flops_follow_from_amp_units(machine, f16_tera, f32_tera):
    # Reference 1.2: an AMP unit does 4 MACs a cycle on f16 and 1 on f32 (8 units: 32 and 8).
    chip = machine.chip
    flops = 2 * chip.tiles * chip.clock_hz
    assert 4 * chip.amp_units_f16_f16 * flops / 1e12 == pytest.approx(f16_tera, rel=1e-3)
    assert chip.amp_units_f32_f32 * flops / 1e12 == pytest.approx(f32_tera, rel=2e-3)
    assert chip.peak_flops_per_cycle(2) * chip.clock_hz / 1e12 == pytest.approx(f16_tera, rel=1e-3)
    assert chip.peak_flops_per_cycle(4) * chip.clock_hz / 1e12 == pytest.approx(f32_tera, rel=2e-3)
    assert chip.peak_flops_per_cycle(1) == 2 * chip.peak_flops_per_cycle(2)
    assert chip.amp_units_f16_f32 == 8
    assert chip.weight_load_bytes_per_cycle == 8


def test_vector_width():
    assert [POD4.chip.vector_width(size) for size in (1, 2, 4, 8)] == [8, 4, 2, 1]
    with pytest.raises(MachineError, match="3 bytes has no vector width, allowed: 1, 2, 4, 8"):
        POD4.chip.vector_width(3)


def test_host_and_streaming_memory_values():
    memory = POD4.ipu_machine
    assert memory.ddr_bandwidth_bytes_per_s == 17_600_000_000
    assert memory.streaming_memory.ddr_store_rate == 0.74
    assert memory.ddr_bandwidth_bytes_per_s < 38.4e9
    assert memory.remote_transfer_seconds == 10.8e-6
    assert memory.remote_packet_bytes == 64
    assert memory.ddr_capacity_bytes == 256_000_000_000
    host = POD4.host
    assert (host.run_seconds, host.call_seconds, host.first_run_seconds) == (118e-6, 490e-6, 249e-6)
    assert (host.sync_seconds, host.callback_seconds, host.answer_seconds) == (31e-6, 10e-6, 18e-6)
    assert (host.stream_latency_seconds, host.pcie_bandwidth_bytes_per_s) == (1.125e-6, 5_647_000_000)
    assert (host.start_seconds(), host.start_seconds(front_end=False)) == (608e-6, 118e-6)
    rng = np.random.default_rng(5)  # the last of eight processes, by drawing
    last = rng.exponential(host.process_spread_seconds, (100_000, 8)).max(axis=1).mean() - host.process_spread_seconds
    assert host.start_seconds(processes=8) - host.start_seconds() == pytest.approx(last, rel=0.01)
    assert load_machine("pod4").ipu_machine.link_latency_cycles == 20  # 15 ns of 1.325 GHz is 19.875


def test_no_streaming_memory_on_a_c2_card_is_an_error_that_says_why():
    assert GC2.ipu_machine.streaming_memory is None
    for name in ("ddr_bandwidth_bytes_per_s", "ddr_capacity_bytes", "remote_transfer_seconds", "remote_packet_bytes"):
        with pytest.raises(MachineError, match="C2: no Streaming Memory, so no remote buffers: a C2 card"):
            getattr(GC2.ipu_machine, name)
    with pytest.raises(MachineError, match="ipu0 has no IPU-Gateway"):
        GC2.topology.remote_route(0, load=True)
    assert set(GC2.absences) == set(STREAMING_MEMORY)


@pytest.mark.parametrize("name", list_machines())
def test_every_figure_has_a_unit_a_source_and_a_kind(name):
    machine = load_machine(name)
    known = {canonical(key) for key in (*machine.figures, *machine.absences)}
    needless = set() if machine.racks > 1 else set(SEVERAL_RACKS)
    if machine.num_ipu_machines == 1:
        needless.add("ipu_machine.global_sync")
    assert known >= {key for key in FIGURES if "*" not in key and key not in needless}
    for key, figure in machine.figures.items():
        assert figure.unit in UNITS[FIGURES[canonical(key)]]
        assert figure.kind in KINDS
        assert len(figure.source) > 10


def test_figures_keep_the_value_as_written():
    figure = POD4.figures["chip.clock"]
    assert (figure.value, figure.unit, figure.kind) == (1.325, "GHz", "datasheet")
    assert POD4.figures["ipu_machine.ddr_bandwidth"].unit == "GB/s"
    with pytest.raises(TypeError):
        POD4.figures["chip.clock"] = figure


@pytest.mark.parametrize(
    ("value", "unit", "dimension", "base"),
    [
        (1.325, "GHz", "frequency", 1_325_000_000),
        (100, "MHz", "frequency", 100_000_000),
        (33, "kHz", "frequency", 33_000),
        (7, "Hz", "frequency", 7),
        (128, "Gbit/s", "bandwidth", 16_000_000_000),
        (1, "GiB/s", "bandwidth", 2**30),
        (5.5, "GB/s", "bandwidth", 5_500_000_000),
        (624, "KiB", "size", 638_976),
        (1.5, "MiB", "size", 1_572_864),
        (2, "GB", "size", 2_000_000_000),
        (7, "cycles", "latency", 7),
        (85, "percent", "ratio", 0.85),
    ],
)
def test_units(value, unit, dimension, base):
    assert float(base_value(Figure(value, unit, "s", "assumed"), dimension)) == base


def test_times_in_several_units_are_the_same_time():
    times = [(1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")]
    assert {base_value(Figure(value, unit, "s", "assumed"), "time") for value, unit in times} == {1}


@given(st.integers(0, 2**48), st.sampled_from([GC2, POD4, BOW]))  # up to 42 hours of simulated time
def test_cycles_of_seconds_gives_the_cycles_back(cycles, machine):
    assert machine.chip.cycles(machine.chip.seconds(cycles)) == cycles


@given(st.floats(1e-9, 1e3))
def test_cycles_cover_the_time_and_not_a_cycle_more(seconds):
    cycles = POD4.chip.cycles(seconds)
    assert cycles >= seconds * POD4.chip.clock_hz * (1 - 1e-15)
    assert cycles < seconds * POD4.chip.clock_hz + 1


def test_cycles_are_rounded_up():
    assert POD4.chip.cycles(0) == 0
    assert POD4.chip.cycles(1e-12) == 1
    assert POD4.chip.cycles(100e-9) == 133  # 132.5
    assert POD4.chip.cycles(1) == 1_325_000_000


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_cycles_of_no_time(seconds):
    with pytest.raises(MachineError, match="must be >= 0"):
        POD4.chip.cycles(seconds)


def test_a_machine_is_a_value():
    again = load_machine("pod4")
    assert again == POD4
    assert hash(again) == hash(POD4)
    assert load_machine("pod16") != POD4
    POD4.topology.route(0, 3)
    copy = pickle.loads(pickle.dumps(POD4))
    assert copy == POD4
    assert dict(copy.figures) == dict(POD4.figures)


@pytest.mark.parametrize("key", POD4.figures)
@pytest.mark.parametrize("value", ["1e300", "1e-300", "-1e300", pytest.param("1" + "0" * 400, id="integer"), "largest"])
def test_any_size_of_a_figure_is_an_error_or_a_machine(key, value, tmp_path):
    """One line that names file and key, or a machine that can be described; no figure is too large for arithmetic."""
    figure, dimension = POD4.figures[key], FIGURES[canonical(key)]
    largest = LARGEST["time" if dimension == "latency" and figure.unit != "cycles" else dimension]
    text = str(float(largest / UNITS[dimension][figure.unit])) if value == "largest" else value
    section, name = key.rsplit(".", 1)
    path = tmp_path / "my.toml"
    path.write_text(
        f'extends = "pod4"\n[{section}]\n'
        f'{name} = {{ value = {text}, unit = "{figure.unit}", source = "none", kind = "assumed" }}\n'
    )
    if value not in ("1e-300", "largest"):
        with pytest.raises(MachineError, match=re.escape(f"{path}: {key}: ")) as caught:
            load_machine(path)
        assert len(str(caught.value)) < 400
        return
    with suppress(MachineError):
        machine = load_machine(path)
        assert describe(machine)
        assert json.dumps(as_dict(machine))


@pytest.mark.parametrize("wrong", [3, None, 1.5, ["pod4"], b"pod4"])
def test_what_names_no_machine_is_an_error(wrong):
    with pytest.raises(MachineError, match="is no machine, allowed: the name of a preset"):
        load_machine(wrong)
