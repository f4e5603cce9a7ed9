"""What `ipuperf machines` prints."""

import json

import pytest
from click.testing import CliRunner

from ipuperf.cli.machines import machines
from ipuperf.machine import MachineError, list_machines, load_machine
from ipuperf.machine.describe import describe, draw_topology


def run(*arguments: str):
    return CliRunner().invoke(machines, list(arguments))


def test_list_has_a_line_for_each_preset():
    lines = run().output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list_machines()
    assert ["pod16", "16", "GC200", "15.05", "GB", "1,024", "GB"] in [line.split() for line in lines]
    assert next(line for line in lines if line.startswith("gc2-1 ")).endswith("none")


@pytest.mark.parametrize("name", list_machines())
def test_describe_shows_every_figure_with_its_source(name):
    machine = load_machine(name)
    text = describe(machine)
    lines = text.splitlines()
    for key, figure in machine.figures.items():
        line = next(line for line in lines if line.split()[:1] == [key])
        assert figure.unit in line
        assert figure.kind in line
        assert line.endswith(figure.source)
    for key, absence in machine.absences.items():
        assert any(key in line and absence.reason in line for line in lines)
    assert run(name).output == text


def test_every_link_of_a_small_machine_is_shown_and_many_are_folded():
    pod4 = describe(load_machine("pod4"))
    assert "pod4/ipu0->ipu1      ipu_link  6      81.6 GB/s" in pod4
    assert "pod4/gateway0->ipu3" in pod4
    assert "64 like pod64/ipu0->ipu1" in describe(load_machine("pod64"))


def test_drawing_of_the_ladder():
    assert draw_topology(load_machine("pod4").topology) == ("ipu0  =6= ipu1\n |2        |2\nipu2  =6= ipu3")
    assert draw_topology(load_machine("bow-1").topology) == "ipu0"
    torus = draw_topology(load_machine("pod64").topology)
    assert torus.endswith("ipu62 =6= ipu63\nclosed to a torus: ipu62 to ipu0 (2), ipu63 to ipu1 (2)")


def test_a_machine_that_is_no_ladder_is_listed(tmp_path):
    path = tmp_path / "cross.toml"
    rails = "[ipu_machine.bundles.rail0]\nbetween = [0, 3]\n[ipu_machine.bundles.rail1]\nbetween = [1, 2]\n"
    path.write_text(f'extends = "pod4"\n{rails}')
    assert draw_topology(load_machine(path).topology).splitlines()[0] == "ipu0: ipu1 (6), ipu3 (2)"


def test_json():
    one = json.loads(run("pod4", "--json").output)
    assert one["chip"]["clock_hz"] == 1_325_000_000
    assert one["figures"]["chip.clock"]["kind"] == "datasheet"
    assert len(one["links"]) == len(load_machine("pod4").topology.links)
    assert [machine["name"] for machine in json.loads(run("--json").output)] == list_machines()


def test_a_users_file_and_an_unknown_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('extends = "pod4"\ndescription = "my own"\n')
    assert run(str(path)).output.startswith("mine: my own\n")
    wrong = run("pod5")
    assert isinstance(wrong.exception, MachineError)
    assert str(wrong.exception).startswith("unknown machine 'pod5' (did you mean pod")
