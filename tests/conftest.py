"""Fixtures that several rooms of the tests share: data, tutorials, the front ends, the installed command line.

Nothing here acts on a test that does not ask for it, except that tests marked ``slow`` wait for ``pytest -m slow``
and those marked ``heavy`` for ``pytest --heavy``, and that a file of tests has to leave the front ends as they were.
"""

import atexit
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["rows"]  # the fixture ``golden``
settings.register_profile("ipuperf", deadline=None)  # a busy laptop is slow, not wrong
settings.load_profile("ipuperf")

THREADS = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""One thread for each linear algebra library, unless the environment says otherwise.

The products of the tests are small: where more threads than free cores wait for each other in them, a run takes up to
fifty times as long.
"""
for _name, _count in THREADS.items():  # before anything imports NumPy
    os.environ.setdefault(_name, _count)
os.environ["IPUPERF_CACHE"] = "off"  # nothing is written into the home of whoever runs the tests, nor read there
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # whichever test imports TensorFlow first: it is read once
# Workers and the hundred programs that tests start find compiled what one of them compiled (0.4 s each, 6 s a worker);
# so does the next run.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
"""Data that some tests use where they are there, beside the checkout: ``data/mnist`` (the real MNIST, also found by
``IPUPERF_DATA``) and ``seeds`` (the vendor's tutorials, ``NUMBER_*.txt``). Nothing else in the project looks outside
it; what is missing is named by the skipped tests."""
RunIpuperf = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--heavy``, which ``.ci/run`` gives."""
    parser.addoption("--heavy", action="store_true", help="run also what takes a second and more")


def pytest_configure(config: pytest.Config) -> None:
    """End a worker at once when it is through: freeing what thousands of tests imported takes four seconds."""
    if hasattr(config, "workerinput"):
        atexit.register(os._exit, 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put ``heavy`` tests first, so that no worker starts one last; skip them and ``slow`` ones unless asked for."""
    items.sort(key=lambda item: "heavy" not in item.keywords)
    if config.option.markexpr:
        return
    heavy = config.option.heavy or any("::" in argument for argument in config.args)  # a test that is named runs
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="slow: run it with `pytest -m slow`"))
        elif "heavy" in item.keywords and not heavy:
            item.add_marker(pytest.mark.skip(reason="heavy: run it with `pytest --heavy`"))


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays: the garbage collector would find nothing meanwhile."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_finish() -> None:
    """What all tests share (their functions, PyTorch) is never looked at again by the garbage collector, which took a
    fifth of the time of a run, and it looks less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _data_folders() -> list[Path]:
    given = os.environ.get("IPUPERF_DATA")
    return [*([Path(given).expanduser()] if given else []), SHARED / "data"]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """What ``IPUPERF_DATA`` shall name: a folder that holds MNIST (``mnist/`` or the files themselves)."""
    for folder in _data_folders():
        for place in (folder / "mnist", folder):
            if len({p.name.removesuffix(".gz") for p in place.glob("*-ubyte*")}) == 4:
                return folder.resolve()
    pytest.skip(f"no MNIST in {', '.join(map(str, _data_folders()))}; set IPUPERF_DATA")


@pytest.fixture(scope="session")
def mnist_folder(data_folder: Path) -> Path:
    """The folder of the four IDX files."""
    return data_folder / "mnist" if (data_folder / "mnist").is_dir() else data_folder


@pytest.fixture(scope="session")
def seeds_folder() -> Path:
    """The folder of the tutorials (``000_*.txt`` ...), beside the data."""
    candidates = [folder.parent / "seeds" for folder in _data_folders()]
    for folder in candidates:
        if any(folder.glob("003_*.txt")):
            return folder.resolve()
    pytest.skip(f"no tutorials in {', '.join(map(str, candidates))}")


@contextmanager
def _front_ends() -> Iterator[None]:
    from ipuperf.runtime.install import install, installed_names, uninstall

    before = set(installed_names())
    install()
    try:
        yield
    finally:
        uninstall(set(installed_names()) - before)


@pytest.fixture(scope="module", autouse=True)
def _front_ends_are_left_alone() -> Iterator[None]:
    """Each file of tests uninstalls the front ends that it installs: which files run before it must not matter."""

    def finders() -> list[object]:
        return [finder for finder in sys.meta_path if type(finder).__module__.startswith("ipuperf.")]

    before = finders()
    yield
    assert finders() == before, "ipuperf.install() without uninstall()"


@pytest.fixture(scope="session")
def installed_front_ends() -> Callable[[], object]:
    """A context manager: within it ``import popxl`` finds ipuperf; afterwards all is as before."""
    return _front_ends


@pytest.fixture
def upstream_names() -> Iterator[None]:
    """``import popxl`` finds ipuperf for the duration of the test."""
    with _front_ends():
        yield


@pytest.fixture(scope="session")
def ipuperf_command() -> list[str]:
    """The installed console script, else the module it calls."""
    script = Path(sys.executable).with_name("ipuperf")
    found = str(script) if script.is_file() else shutil.which("ipuperf")
    return [found] if found else [sys.executable, "-m", "ipuperf"]


@pytest.fixture(scope="session")
def child_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of child processes: an empty home, no data set, :data:`THREADS`."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("IPUPERF_", "COV_", "PYTHONPATH", "TF_USE_"))
    }
    return {**environment, **THREADS, "HOME": str(home), "MPLBACKEND": "Agg", "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="session")
def run_ipuperf(ipuperf_command: list[str], child_environment: dict[str, str]) -> RunIpuperf:
    """``run_ipuperf("machines", cwd=folder, env={...})``: the finished process with its texts; the exit code is the
    caller's to check."""

    def run(*args: object, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ipuperf_command, *map(str, args)],
            cwd=cwd,
            env={**child_environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


@pytest.fixture
def ipuperf_here(monkeypatch: pytest.MonkeyPatch) -> RunIpuperf:
    """As ``run_ipuperf``, in this process and much quicker: for what a process of its own would show no better
    (arguments, messages, files). An exception that would end in a traceback of ipuperf's own is raised."""
    from click.testing import CliRunner

    from ipuperf.cli import cli

    for name in [name for name in os.environ if name.startswith("IPUPERF_")]:
        monkeypatch.delenv(name)

    def run(*args: object, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(arg) for arg in args]
        with monkeypatch.context() as place:
            place.chdir(cwd)
            done = CliRunner().invoke(cli, words, env={"MPLBACKEND": "Agg", **(env or {})}, catch_exceptions=False)
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    return run
