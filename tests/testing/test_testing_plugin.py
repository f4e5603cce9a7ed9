"""The plug-in as users meet it: pytest in a process of its own, in an example project and in small ones."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rows import Golden

pytest_plugins = ["pytester"]
EXAMPLE = Path(__file__).parent / "example_project"
RunPytest = Callable[..., "subprocess.CompletedProcess[str]"]

UNUSED = """
import sys

def test_nothing_is_loaded():
    own = {name for name in sys.modules if name.partition(".")[0] == "ipuperf"}
    assert own <= {
        *("ipuperf", "ipuperf.base", "ipuperf.base.version", "ipuperf.runtime", "ipuperf.runtime.aliases"),
        *("ipuperf.tools", "ipuperf.tools.testing", "ipuperf.tools.testing.plugin"),
    }
    assert "ipuperf.tools.testing.plugin" in own
    assert not {"numpy", "pandas", "matplotlib", "simpy", "torch"} & set(sys.modules)
"""

USED = """
import pytest
from ipuperf.trace import Trace

def trace(cycles):
    steps = {"segment": [0], "seq": [0], "program_id": [-1], "op_id": [-1], "kind": ["compute"], "rel_start": [0],
             "dur": [cycles], "dur_mean": [cycles], "active_tiles": [1], "argmax_tile": [0], "bytes_in": [0],
             "bytes_out": [0], "flops": [0], "lane": [0], "loop": [-1]}
    instances = {"instance": [0], "segment": [0], "ipu": [0], "replica": [0], "micro_batch": [-1], "iteration": [-1],
                 "start": [0], "dur": [cycles], "parent": [0]}
    meta = {"machine": "m", "clock_hz": 1, "tiles_per_ipu": 1, "bytes_per_tile": 1, "num_ipus": 1}
    return Trace(meta, {"steps": steps, "instances": instances})

@pytest.mark.parametrize("cycles", [7, 8])
def test_step(cycle_baseline, cycles):
    cycle_baseline.check(trace(cycles), "one")

class TestBlock:
    def test_step(self, cycle_baseline):
        cycle_baseline.check_table([{"a": 1}], "two", keys=["a"])
"""


def test_a_run_that_does_not_use_it_loads_nothing(tmp_path: Path, run_pytest: RunPytest) -> None:
    (tmp_path / "test_unused.py").write_text(UNUSED)
    done = run_pytest(tmp_path, "-q")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "baselines" not in done.stdout


@pytest.mark.heavy
def test_options_settings_and_places(tmp_path: Path, run_pytest: RunPytest) -> None:
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    (folder / "test_used.py").write_text(USED)
    (tmp_path / "pytest.ini").write_text("[pytest]\nipuperf_baselines = kept\n")
    missing = run_pytest(tmp_path, "-q")
    assert missing.returncode == 1
    assert "pytest 'tests/unit/test_used.py::test_step[7]' --update-baselines" in missing.stdout
    assert "3 failed" in missing.stdout
    assert not (folder / "kept").exists()
    written = run_pytest(tmp_path, "-q", "--update-baselines")
    assert written.returncode == 0, written.stdout
    assert "new: tests/unit/kept/test_used.test_step-7.one.json" in written.stdout
    assert "3 written, 0 unchanged" in written.stdout
    names = [
        "test_used.TestBlock.test_step.two.csv",
        "test_used.test_step-7.one.json",
        "test_used.test_step-8.one.json",
    ]
    assert sorted(path.name for path in (folder / "kept").iterdir()) == names
    elsewhere = run_pytest(folder, "-q", "--update-baselines", "--baselines-dir", str(tmp_path / "all"))
    assert elsewhere.returncode == 0, elsewhere.stdout
    assert sorted(path.name for path in (tmp_path / "all" / "tests" / "unit").iterdir()) == names


@pytest.mark.heavy
def test_the_example_project_is_guarded(tmp_path: Path, run_pytest: RunPytest) -> None:
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__", "baselines"))
    recorded = run_pytest(project, "--update-baselines")
    assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    assert "new: baselines/test_program.test_cycles.forward.json" in recorded.stdout

    program = project / "program.py"
    program.write_text(program.read_text().replace("HIDDEN = 1024", "HIDDEN = 2048"))
    grown = run_pytest(project)
    assert grown.returncode == 1
    text = re.sub(r"^E   +", "", grown.stdout, flags=re.MULTILINE)
    assert "cycles and bytes of 'inference_session' on gc200-1 moved: " in text
    number = r"[\d,]+"
    row = rf"main/MatMul 1 +MatMul +{number} +{number} +\+{number} +\+[\d.]+%"
    assert re.search(rf"operations, cycles on all IPUs: \d moved\n(.*\n)+? *{row}\n", text)
    for figure in ("total", "all IPUs: compute", "IPU 0: peak of live bytes", "steps of kind exchange: received"):
        assert re.search(rf"{figure} +{number} +{number} +\+{number} +\+[\d.]+%\n", text), figure
    assert "HostLoad" not in text
    assert "pytest test_program.py::test_cycles --update-baselines" in text
    assert "1 failed, 1 passed" in grown.stdout

    updated = run_pytest(project, "--update-baselines")
    assert "rewritten: baselines/test_program.test_cycles.forward.json" in updated.stdout
    assert run_pytest(project).returncode == 0


# -- in this process ---------------------------------------------------------------------------------------------------

SETTINGS = (((), ""), (("--update-baselines",), ""), ((), ""))
SETTINGS += ((("--update-baselines",), "ipuperf_baselines = kept/there"),)
SETTINGS += ((("--baselines-dir", "given"), "ipuperf_baselines = kept"),)
SETTINGS += ((("--baselines-dir", "/ALL", "--update-baselines"), ""), (("-k", "nothing", "--update-baselines"), ""))


@pytest.mark.heavy
def test_places_commands_and_summaries(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    """Runs one after the other: how each ends, what it tells to do and has written, and all files there are."""
    monkeypatch.delenv("CI", raising=False)  # where it is set, pytest's summary has whole messages
    folder = pytester.mkdir("a b")
    (folder / "test_used.py").write_text(USED)
    said = []
    for arguments, setting in SETTINGS:
        pytester.makeini(f"[pytest]\n{setting}\n")
        words = [word.replace("/ALL", f"{pytester.path / 'all'}") for word in arguments]
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", *words)
        said += [
            f"-- {' '.join(arguments)} {setting}",
            f"{ {kind: count for kind, count in done.parseoutcomes().items() if kind != 'warnings'} }",
        ]
        for line in done.outlines:
            if line.startswith(("new: ", "rewritten: ")) or " written, " in line or " --update-baselines" in line:
                said.append(line.removeprefix("E").strip())
        said += sorted(f"{path.relative_to(pytester.path)}" for path in pytester.path.rglob("test_used.*.*[nv]"))
    golden(said)


def test_folders_beside_a_root(tmp_path: Path) -> None:
    """An absolute folder holds the folders of the test files; of those outside of the root their names alone."""
    from types import SimpleNamespace

    from ipuperf.testing.plugin import _folder

    def config(option: object, setting: str) -> object:
        return SimpleNamespace(getoption=lambda _: option, getini=lambda _: setting, rootpath=tmp_path / "root")

    inside, outside = tmp_path / "root" / "a" / "b", tmp_path / "c" / "d"
    assert _folder(config(None, "x"), inside) == inside / "x"
    assert _folder(config("y", "/x"), inside) == inside / "y"
    assert _folder(config(None, "/x"), inside) == Path("/x/a/b")
    assert _folder(config(None, "/x"), outside) == Path("/x/d")
