"""A user's TOML: overrides that hold, and every way to get it wrong with its message."""

from pathlib import Path

import pytest

from ipuperf.machine import MachineError, load_machine

CLOCK = '{ value = 1.5, unit = "GHz", source = "me", kind = "assumed" }'


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_override_replaces_one_figure_and_its_provenance(write):
    path = write(f'extends = "pod4"\n[chip]\nclock = {CLOCK}\n')
    mine, pod4 = load_machine(path), load_machine("pod4")
    assert mine.name == "mine"
    assert mine.chip.clock_hz == 1_500_000_000
    assert mine.figures["chip.clock"].source == "me"
    assert mine.chip.tiles == pod4.chip.tiles
    changed = {key for key in pod4.figures if mine.figures[key] != pod4.figures[key]}
    assert changed == {"chip.clock"}
    assert mine.topology.links[0].name == "mine/ipu0->ipu1"
    assert load_machine(str(path)) == mine


def test_latencies_follow_the_overridden_clock(write):
    path = write(f'extends = "pod4"\n[chip]\nclock = {CLOCK.replace("1.5", "2")}\n')
    assert load_machine(path).ipu_machine.link_latency_cycles == 30


def test_a_latency_may_be_given_in_nanoseconds(write):
    sync = '{ value = 100, unit = "ns", source = "me", kind = "measured" }'
    assert load_machine(write(f'extends = "pod4"\n[chip]\nsync = {sync}\n')).chip.sync_cycles == 133


def test_exchange_a_part_and_name_the_machine(write):
    machine = load_machine(write('extends = "pod16"\nname = "swap"\n[parts]\nchip = "bow"\n'))
    assert (machine.name, machine.chip.name, machine.num_ipus) == ("swap", "Bow", 16)


def test_extend_a_file_that_extends_a_preset(write):
    write(f'extends = "pod4"\n[chip]\nclock = {CLOCK}\n', "base.toml")
    sync = '{ value = 90, unit = "cycles", source = "me", kind = "assumed" }'
    machine = load_machine(write(f'extends = "base.toml"\n[chip]\nsync = {sync}\n'))
    assert (machine.chip.clock_hz, machine.chip.sync_cycles, machine.chip.tiles) == (1_500_000_000, 90, 1472)


def test_more_machines_in_the_ladder(write):
    count = '{{ value = {}, unit = "count", source = "me", kind = "assumed" }}'
    system = f"[system]\nipus = {count.format(8)}\nipu_machines = {count.format(2)}\n"
    machine = load_machine(write(f'extends = "pod16"\n{system}'))
    assert machine.num_ipus == 8
    assert machine.topology.ring(range(8)) == (0, 1, 3, 5, 7, 6, 4, 2)


def test_a_machine_without_streaming_memory(write):
    keys = ("gateway_bandwidth", "ddr_bandwidth", "ddr_capacity", "remote_transfer", "remote_packet")
    keys += ("host_link_bandwidth", "ddr_store_rate")
    lines = [f'{key} = {{ absent = "taken out", source = "me" }}' for key in keys]
    machine = load_machine(write('extends = "pod4"\n[ipu_machine]\n' + "\n".join(lines)))
    with pytest.raises(MachineError, match="taken out"):
        machine.ipu_machine.require_streaming_memory()
    assert [link.kind for link in machine.topology.host_route(2, to_host=True)] == ["pcie"]
    only_one = 'extends = "pod4"\n[ipu_machine]\n' + lines[1]
    with pytest.raises(MachineError, match=r"ddr_bandwidth: absent while ipu_machine.gateway_bandwidth is not"):
        load_machine(write(only_one))


def figure(**changes) -> str:
    fields = {"value": "1.5", "unit": '"GHz"', "source": '"me"', "kind": '"assumed"', **changes}
    return "{ " + ", ".join(f"{key} = {value}" for key, value in fields.items() if value is not None) + " }"


def clock(**changes) -> str:
    return f"[chip]\nclock = {figure(**changes)}\n"


RATIO = figure(unit='"ratio"')
KIB = figure(unit='"KiB"', value="400")
COUNT = figure(unit='"count"', value="{}").replace("{ ", "{{ ").replace(" }", " }}")

WRONG = [
    (clock(unit=None), "chip.clock: missing 'unit' in a figure, needed: value, unit, source, kind"),
    (clock(value=None), "chip.clock: missing 'value'"),
    (clock(source=None), "chip.clock: missing 'source'"),
    (clock(kind=None), "chip.clock: missing 'kind'"),
    (clock(unit='"furlong"'), "chip.clock: unknown unit 'furlong' for a frequency; allowed: Hz, kHz, MHz, GHz"),
    (clock(unit='"GB/s"'), "chip.clock: unknown unit 'GB/s' for a frequency"),
    (clock(unit="[1]"), "chip.clock: unit = [1], it must be a text that is not empty"),
    (clock(kind='"guess"'), "chip.clock: unknown kind 'guess'; allowed: datasheet, measured, calibrated, assumed"),
    (clock(value='"1.5"'), "chip.clock: value = '1.5' is not a number"),
    (clock(value="true"), "chip.clock: value = True is not a number"),
    (clock(value="nan"), "chip.clock: value = nan is not a finite number"),
    (clock(value="inf"), "chip.clock: value = inf is not a finite number"),
    (clock(value="0"), "chip.clock: value = 0 GHz, a frequency must be greater than 0"),
    (clock(value="-1"), "chip.clock: value = -1 GHz, a frequency must be greater than 0"),
    (clock(source='" "'), "chip.clock: source = ' ', it must be a text that is not empty"),
    (clock(note='"x"'), "chip.clock: unknown key 'note' in a figure; allowed: value, unit, source, kind"),
    ("[chip]\nclock = 1.5\n", "chip.clock: 1.5 is not a figure, write { value = "),
    ('[chip]\nclock = { absent = "no", source = "me" }\n', "chip.clock: this figure cannot be absent"),
    ('[ipu_machine]\nddr_bandwidth = { absent = "no" }\n', "ddr_bandwidth: missing 'source' in a figure"),
    (
        f"[chip]\nclok = {CLOCK}\n",
        "chip.clok: unknown key (did you mean clock?), allowed here: alignment, amp_unit_weights,",
    ),
    ("[chips]\nx = 1\n", "chips: unknown key (did you mean chip?), allowed here: chip, description, extends"),
    ("chip = 3\n", "chip: 3 is not a table, write [chip]"),
    ('[chip]\narchitecture = "ipu3"\n', "chip.architecture: 'ipu3' is not known"),
    ("name = 3\n", "name: 3 must be a text that is not empty"),
    (
        '[parts]\nchip = "gc20"\n',
        "parts.chip: unknown chip 'gc20' (did you mean gc200 or gc2?), presets: bow, c600, gc2, gc200",
    ),
    (f"[chip]\ntiles = {COUNT.format(1472.5)}\n", "chip.tiles: value = 1472.5 count is not a whole number"),
    (
        f"[ipu_machine]\nlink_efficiency = {RATIO}\n",
        "link_efficiency: value = 1.5 ratio, a ratio must not",
    ),
    (
        f"[chip]\ninterleaved = {KIB}\n",
        "chip.bytes_per_tile: 638976 bytes, but non_interleaved +",
    ),
    (
        "[ipu_machine.bundles.rung0]\nbetween = [0, 4]\n",
        "ipu_machine.bundles.rung0.between: IPU 4 is not there, an IPU-Machine has IPUs 0 to 3",
    ),
    ("[ipu_machine.cables.rail0]\nbetween = [7, 0]\n", "ipu_machine.cables.rail0.between: IPU 7 is not there"),
    ("[ipu_machine.bundles.rung0]\nbetween = [1, 1]\n", "rung0.between: [1, 1] joins an IPU to itself"),
    ("[ipu_machine.bundles.rung0]\nbetween = [1]\n", "rung0.between: [1] is not a pair of IPU numbers such as [0, 1]"),
    ("[ipu_machine.bundles.rung0]\nbetween = [1, -1]\n", "rung0.between: [1, -1] is not a pair"),
    (
        f"[ipu_machine.bundles.new]\nlinks = {COUNT.format(1)}\n",
        "ipu_machine.bundles.new.between: missing, a pair of IPUs",
    ),
    ("[ipu_machine.bundles.new]\nbetween = [0, 3]\n", "ipu_machine.bundles.new.links: missing figure"),
    ("[ipu_machine.bundles.rung0]\nwidth = 3\n", "bundles.rung0.width: unknown key, allowed here: between, links"),
    (
        f"[ipu_machine.bundles.new]\nbetween = [0, 3]\nlinks = {COUNT.format(1)}\n",
        "ipu_machine.links_per_ipu: 10 links, but bundles and cables use 11 of IPU 0",
    ),
    ("[ipu_machine.bundles.rung0]\nbetween = [2, 3]\n", "ipu_machine.links_per_ipu: 10 links, but"),
    (f"[system]\nipus = {COUNT.format(5)}\n", "system.ipus: 5 IPUs in 1 IPU-Machines of 4, allowed: 1 to 4"),
    ('[system]\nwiring = "ladder"\n', "system.wiring: 'ladder' with 1 IPU-Machines"),
    (
        '[system]\nwiring = "ring"\n',
        "system.wiring: 'ring' is not known; allowed: single, ladder, torus",
    ),
    ("[chip\n", "not valid TOML"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_wrong_toml_names_file_key_and_what_is_allowed(write, text, message):
    with pytest.raises(MachineError) as caught:
        load_machine(write('extends = "pod4"\n' + text))
    assert message in str(caught.value)
    assert ".toml: " in str(caught.value)


def test_the_error_names_the_users_file(write):
    path = write('extends = "pod4"\n' + clock(unit=None))
    with pytest.raises(MachineError) as caught:
        load_machine(path)
    assert str(caught.value).startswith(f"{path}: chip.clock: ")


def test_missing_figures_of_a_machine_from_scratch(write):
    with pytest.raises(MachineError, match=r"mine.toml: chip.clock: missing figure"):
        load_machine(write('name = "x"\n'))
    path = write('[parts]\nchip = "gc200"\nipu_machine = "ipu-m2000"\nhost = "pod"\n')
    with pytest.raises(MachineError, match=r"mine.toml: system.ipus: missing figure"):
        load_machine(path)


def test_two_bundles_between_the_same_ipus(write):
    count = '{ value = 1, unit = "count", source = "me", kind = "assumed" }'
    text = (
        f"links_per_ipu = {count.replace('1,', '12,')}\n[ipu_machine.bundles.twin]\nbetween = [1, 0]\nlinks = {count}\n"
    )
    with pytest.raises(MachineError, match="two bundles of links make mine/ipu1->ipu0"):
        load_machine(write('extends = "pod4"\n[ipu_machine]\n' + text))


def count(value: int) -> str:
    return f'{{ value = {value}, unit = "count", source = "me", kind = "assumed" }}'


def test_racks_of_a_users_file(write):
    """Three racks of two IPU-M2000: a ring of three, one port each way."""
    system = f"ipus = {count(24)}\nipu_machines = {count(6)}\nracks = {count(3)}\n"
    machine = load_machine(write(f'extends = "pod128"\n[system]\n{system}'))
    assert (machine.racks, machine.topology.racks) == (3, 3)
    links = {(link.source, link.destination): link for link in machine.topology.links if link.kind == "gw_link"}
    assert {(a, b) for a, b in links if a < b} == {
        ("gateway0", "gateway2"),
        ("gateway0", "gateway4"),
        ("gateway2", "gateway4"),
        ("gateway1", "gateway3"),
        ("gateway1", "gateway5"),
        ("gateway3", "gateway5"),
    }
    assert {link.bandwidth_bytes_per_s for link in links.values()} == {12_500_000_000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"[system]\nracks = {count(3)}\n", "system.racks: 3 racks for 128 IPUs in 32 IPU-Machines, allowed: racks of"),
        (f"[system]\nipus = {count(127)}\n", "system.racks: 2 racks for 127 IPUs"),
    ],
)
def test_racks_that_cannot_be(write, text, message):
    with pytest.raises(MachineError, match=message):
        load_machine(write(f'extends = "pod128"\n{text}'))


def test_a_ring_of_racks_needs_two_ports(write):
    with pytest.raises(MachineError, match="ipu_machine.gw_links: 1, 4 racks need at least 2"):
        load_machine(write(f'extends = "pod256"\n[ipu_machine]\ngw_links = {count(1)}\n'))


def test_racks_need_the_figures_of_gateway_links(write):
    system = f"[system]\nipus = {count(128)}\nipu_machines = {count(32)}\nracks = {count(2)}\n"
    with pytest.raises(MachineError, match="ipu_machine.gw_links: missing figure"):
        load_machine(write(f'extends = "pod64"\n{system}'))


def test_unreachable_ipu(write):
    count = '{ value = 1, unit = "count", source = "me", kind = "assumed" }'
    five = f"[system]\nipus = {count.replace('1,', '5,')}\n[ipu_machine]\nipus = {count.replace('1,', '5,')}\n"
    with pytest.raises(MachineError, match="no IPU-Links lead from IPU 0 to IPU 4"):
        load_machine(write(f'extends = "pod4"\n{five}'))


def test_unknown_machine_lists_presets_and_close_matches():
    with pytest.raises(MachineError, match=r"unknown machine 'pod65' \(did you mean pod64.*presets: bow-1, .*pod64"):
        load_machine("pod65")


def test_unknown_base_and_circles(write):
    with pytest.raises(MachineError, match=r"mine.toml: extends: unknown machine 'podd4'"):
        load_machine(write('extends = "podd4"\n'))
    write('extends = "mine.toml"\n', "other.toml")
    with pytest.raises(MachineError, match="extends itself in a circle"):
        load_machine(write('extends = "other.toml"\n'))


def test_missing_file(tmp_path):
    with pytest.raises(MachineError, match=r"gone.toml: cannot be read"):
        load_machine(tmp_path / "gone.toml")
