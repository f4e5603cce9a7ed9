"""Faults of a machine: how they are written, what they do to links and routes, and what is refused."""

from fractions import Fraction

import pytest

from ipuperf.machine import MachineError, load_machine
from ipuperf.machine.describe import as_dict, describe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' cannot be at fault; allowed: ipu, link, ddr, host"),
        ("ipus 3 at 0.5", "'ipus' cannot be at fault (did you mean ipu?)"),
        ("ipu 3", "not understood, allowed: ipu N at RATE, ipu N tiles N-N at RATE"),
        ("ipu 3 at 0", "a rate of 0, allowed: above 0 and at most 1"),
        ("ipu 3 at 1.01", "a rate of 1.01, allowed: above 0 and at most 1"),
        ("ipu 3 at 0.1234567", "six digits after the point"),
        ("ipu 3 at nan", "a number of nan"),
        ("ipu 3 at fast", "'fast' is no number"),
        ("ipu 16 at 0.5", "there is no IPU 16, the IPUs are 0 to 15"),
        ("ipu 0 tiles 3-1 at 0.5", "go backwards"),
        ("ipu 0 tiles 0-1472 at 0.5", "there is no tile 1472, the tiles are 0 to 1471"),
        ("link ipu0-ipu1", "not understood, allowed: link A-B at RATE, link A-B down"),
        ("link ipu0-ipu3 at 0.5", "no link ipu0->ipu3; ipu0 has links to"),
        ("link ipu0-gateway0 down", "no other route leads from"),
        ("ddr 4 at 0.5", "there is no node gateway4"),
        ("ddr 0 down", "not understood, allowed: ddr N at RATE"),
        ("host", "not understood, allowed: host run|sync|callback LAW TIME"),
        ("host naps constant 1us", "not understood"),
        ("host run gauss 1us", "no distribution 'gauss'"),
        ("host run uniform 1us", "uniform takes 2 numbers, got 1"),
        ("host run uniform 2us 1us", "goes backwards"),
        ("host run constant 20", "'20' is no time, write a number and a unit, as in 20us"),
        ("host run lognormal 1us 6", "a sigma of 6, allowed: 5 at most"),
        ("host run constant 2e4s", "a time of 2e4s, allowed: 0 to 3600s"),
    ],
)
def test_refused(text, message):
    with pytest.raises(MachineError) as raised:
        load_machine("pod16").with_faults(text)
    assert str(raised.value).startswith(f"fault {text!r}: ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("name", "cut", "message"),
    [
        ("pod16", ["ipu0-ipu1", "ipu0-ipu2"], "no IPU-Links are left that lead from IPU 0 to IPU 1"),
        (
            "pod128",
            [f"gateway{gateway}-gateway{gateway + 16}" for gateway in range(16)],
            "no GW-Links are left that lead from IPU 0 to rack 1",
        ),
    ],
)
def test_a_cut_that_leaves_no_route_names_all_of_it(name, cut, message):
    texts = [f"link {ends} down" for ends in cut]
    load_machine(name).with_faults(*texts[1:])
    with pytest.raises(MachineError, match=message) as raised:
        load_machine(name).with_faults(*texts)
    assert all(text in str(raised.value) for text in texts)


def test_links_keep_their_routes_at_part_of_their_rate_and_lose_them_when_down():
    plain = load_machine("pod16")
    slow, cut = plain.with_faults("link ipu0-ipu1 at 0.25"), plain.with_faults("link ipu0-ipu1 down")
    assert plain.topology is slow.topology is cut.topology
    for near, far in ((0, 1), (1, 0)):
        (link,) = plain.topology.route(near, far)
        (slower,) = slow.faulty_topology.route(near, far)
        assert slower.bandwidth_bytes_per_s == link.bandwidth_bytes_per_s // 4
    assert [link.destination for link in cut.faulty_topology.route(0, 1)] == ["ipu2", "ipu3", "ipu1"]
    pairs = [(one, other) for one in range(16) for other in range(16)]
    for one, other in pairs:
        route = plain.topology.route(one, other)
        assert [link.name for link in slow.faulty_topology.route(one, other)] == [link.name for link in route]
        if not {"ipu0->ipu1", "ipu1->ipu0"} & {link.name.split("/")[1] for link in route}:
            assert cut.faulty_topology.route(one, other) == route


def test_shared_ddr_and_the_lowest_rate():
    machine = load_machine("pod16").with_faults("ddr 1 at 0.5", "link gateway1-ddr1 at 0.25", "ddr 1 at 0.75")
    for ends in (("gateway1", "ddr1"), ("ddr1", "gateway1")):
        before, after = machine.topology.link(*ends), machine.faulty_topology.link(*ends)
        assert after.bandwidth_bytes_per_s == before.bandwidth_bytes_per_s // 4
    assert machine.faulty_topology.link("ddr0", "gateway0") == machine.topology.link("ddr0", "gateway0")


def test_no_faults_are_the_machine_itself():
    plain = load_machine("pod4")
    assert plain.with_faults() == plain
    assert plain.faulty_topology is plain.topology
    assert not plain.faults


def test_machine_files(tmp_path):
    def written(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    base = written("base.toml", 'extends = "pod4"\nfaults = ["ipu 3 at .95", "host sync constant 1us"]\n')
    assert load_machine(base).faults.of_ipu(3)[0].rate == Fraction(19, 20)
    assert load_machine(written("same.toml", 'extends = "base.toml"\n')).faults == load_machine(base).faults
    # A later file replaces the list, as it replaces a figure.
    other = load_machine(written("other.toml", 'extends = "base.toml"\nfaults = ["ddr 0 at 0.5"]\n'))
    assert other.with_faults("ipu 0 at 0.5").faults.texts == ["ddr 0 at 0.5", "ipu 0 at 0.5"]
    assert not load_machine(written("none.toml", 'extends = "base.toml"\nfaults = []\n')).faults
    assert as_dict(other)["faults"] == ["ddr 0 at 0.5"]
    assert "Faults\n  ddr 0 at 0.5\n" in describe(other)
    for text, message in (
        ('"ipu 3 at 0.5"', "faults: 'ipu 3 at 0.5' is not a list of texts"),
        ("[3]", "is not a list of texts"),
        ('["ipu 4 at 0.5"]', "wrong.toml: faults: fault 'ipu 4 at 0.5': there is no IPU 4"),
    ):
        with pytest.raises(MachineError, match=r"wrong\.toml") as raised:
            load_machine(written("wrong.toml", f'extends = "pod4"\nfaults = {text}\n'))
        assert message in str(raised.value)
