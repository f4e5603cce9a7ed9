"""Bad files: IDX data, traces and machines that are damaged, cut short or wrong say so with file, place and remedy."""

import gzip
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ipuperf.datasets import DatasetError, load_mnist
from ipuperf.machine import MachineError, load_machine
from ipuperf.trace import SCHEMA_VERSION, Trace, TraceError

# -- IDX ---------------------------------------------------------------------------------------------------------------

IMAGES, LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def _idx(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


GOOD_IMAGES = _idx(np.arange(5 * 784).reshape(5, 28, 28) % 256)
GOOD_LABELS = _idx(np.array([0, 1, 2, 3, 9]))


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a test set of five images; ``IPUPERF_DATA`` leads to it and to nothing else."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / IMAGES).write_bytes(GOOD_IMAGES)
    (folder / LABELS).write_bytes(GOOD_LABELS)
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_good_files_are_read(mnist: Path) -> None:
    images, labels = load_mnist(False)
    assert (images.shape, labels.tolist()) == ((5, 28, 28), [0, 1, 2, 3, 9])


IDX_DAMAGE = {
    "cut short": (IMAGES, GOOD_IMAGES[:-10], "3910 bytes of elements found, expected 3920 for shape (5, 28, 28)"),
    "cut in its sizes": (IMAGES, GOOD_IMAGES[:10], "6 bytes of sizes found, expected 12"),
    "empty": (IMAGES, b"", "0 bytes found"),
    "too long": (IMAGES, GOOD_IMAGES + b"\0", "bytes found after the last element, expected exactly 3920"),
    "no IDX file": (IMAGES, b"<html>not found</html>", "magic number 0x3c68746d found, expected 0x0000"),
    "another type": (IMAGES, b"\0\0\x07" + GOOD_IMAGES[3:], "magic number 0x00000703"),
    "another shape": (IMAGES, _idx(np.zeros((5, 27, 28))), "(5, 27, 28) found, expected uint8 (n, 28, 28)"),
    "fewer labels": (LABELS, _idx(np.array([1, 2])), "2 labels found, expected 5 as images in"),
    "a label of 10": (LABELS, _idx(np.array([0, 1, 2, 3, 10])), "label 10 found, expected 0 to 9"),
    "gzip cut short": (IMAGES, gzip.compress(GOOD_IMAGES)[:-20], "gzip stream is damaged or cut short"),
    "gzip of less": (IMAGES, gzip.compress(GOOD_IMAGES[:-10]), "3910 bytes of elements found"),
}


@pytest.mark.parametrize(("name", "content", "message"), IDX_DAMAGE.values(), ids=IDX_DAMAGE)
def test_damaged_idx_files(mnist: Path, name: str, content: bytes, message: str) -> None:
    (mnist / name).write_bytes(content)
    with pytest.raises(DatasetError) as caught:
        load_mnist(False)
    assert str(caught.value).startswith(f"{mnist / name}: ")
    assert message in str(caught.value)


def test_a_flipped_bit_in_a_packed_file(mnist: Path) -> None:
    packed = bytearray(gzip.compress(GOOD_IMAGES, mtime=0))
    packed[len(packed) // 2] ^= 1
    (mnist / IMAGES).write_bytes(packed)
    with pytest.raises(DatasetError, match=rf"{IMAGES}.*damaged|{IMAGES}.*found, expected"):
        load_mnist(False)


@pytest.mark.heavy
def test_a_tutorials_loader_names_the_damaged_file(mnist: Path, run_ipuperf: Callable, tmp_path: Path) -> None:
    """Through ``ipuperf run``, the stand-in for torchvision and all."""
    (mnist / IMAGES).write_bytes(GOOD_IMAGES[:-10])
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (mnist / name).write_bytes((mnist / name.replace("train", "t10k")).read_bytes())
    (tmp_path / "loads.py").write_text(
        "import torchvision\ntorchvision.datasets.MNIST('~/.torch/datasets', train=False, download=True)\n"
    )
    done = run_ipuperf("run", "loads.py", cwd=tmp_path, env={"IPUPERF_DATA": str(tmp_path)})
    assert done.returncode == 1
    assert f"{mnist / IMAGES}: 3910 bytes of elements found, expected 3920" in done.stderr.splitlines()[-1]


# -- traces ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good_trace(sgd_session: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a real trace."""
    import ipuperf

    path = tmp_path_factory.mktemp("trace") / "good.ipt"
    ipuperf.simulate_session(sgd_session, machine="gc200-1").save(path)
    return path.read_bytes()


def _refusal(content: bytes, folder: Path) -> str:
    """The message with which the file is refused."""
    path = folder / "bad.ipt"
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        Trace.load(path)
    message = str(caught.value)
    assert message.startswith(f"cannot read trace {path}: ")
    return message


def _rewritten(content: bytes, folder: Path, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """The archive with each member changed, or left out where ``change`` gives None."""
    (folder / "in.ipt").write_bytes(content)
    with zipfile.ZipFile(folder / "in.ipt") as source, zipfile.ZipFile(folder / "out.ipt", "w") as target:
        for name in source.namelist():
            data = change(name, source.read(name))
            if data is not None:
                target.writestr(name, data)
    return (folder / "out.ipt").read_bytes()


def test_the_good_trace_is_read(good_trace: bytes, tmp_path: Path) -> None:
    (tmp_path / "good.ipt").write_bytes(good_trace)
    assert Trace.load(tmp_path / "good.ipt").meta["machine"] == "gc200-1"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_trace_that_is_cut_short_is_called_so(good_trace: bytes, tmp_path: Path, share: float) -> None:
    message = _refusal(good_trace[: int(len(good_trace) * share)], tmp_path)
    assert re.search(r"truncated|cut short|damaged|incomplete|not a trace", message)
    assert "KeyError" not in message


def test_a_file_that_is_no_trace(tmp_path: Path) -> None:
    message = _refusal(b"step,cycles\n1,2\n", tmp_path)
    assert re.search(r"truncated|cut short|damaged|incomplete|not a trace", message)


def test_a_trace_of_another_version(good_trace: bytes, tmp_path: Path) -> None:
    def later(name: str, data: bytes) -> bytes:
        if name != "meta.json":
            return data
        return json.dumps({**json.loads(data), "schema_version": 99}).encode()

    message = _refusal(_rewritten(good_trace, tmp_path, later), tmp_path)
    assert f"schema version 99, this ipuperf reads {SCHEMA_VERSION}" in message


@pytest.mark.parametrize("member", ["meta.json", "steps.npz", "liveness.npz"])
def test_a_trace_without_one_of_its_parts(good_trace: bytes, tmp_path: Path, member: str) -> None:
    without = _rewritten(good_trace, tmp_path, lambda name, data: None if name == member else data)
    assert member in _refusal(without, tmp_path)


def test_a_table_with_fewer_rows_than_stated(good_trace: bytes, tmp_path: Path) -> None:
    def more(name: str, data: bytes) -> bytes:
        if name != "meta.json":
            return data
        head = json.loads(data)
        head["rows"]["steps"] += 1
        return json.dumps(head).encode()

    assert "table 'steps' has" in _refusal(_rewritten(good_trace, tmp_path, more), tmp_path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_is_noticed(good_trace: bytes, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(good_trace)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.ipt"
    path.write_bytes(content)
    try:
        loaded = Trace.load(path)
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017 - both outcomes are allowed
    else:
        path.write_bytes(good_trace)
        assert loaded == Trace.load(path), "a bit that means nothing (dates, attributes of the archive)"


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read trace .*gone\.ipt.*No such file"):
        Trace.load(tmp_path / "gone.ipt")


# -- machines ----------------------------------------------------------------------------------------------------------


def _figure(value: Any, unit: str | None, source: str = '"me"', kind: str = '"assumed"') -> str:
    parts = {"value": value, "unit": None if unit is None else f'"{unit}"', "source": source, "kind": kind}
    return "{ " + ", ".join(f"{key} = {text}" for key, text in parts.items() if text is not None) + " }"


MACHINES = {
    "unknown key": ("[chip]\nclok = 3\n", "chip.clok: unknown key (did you mean clock"),
    "unknown table": ("[ddr]\nbandwidth = 3\n", "ddr: unknown key"),
    "missing unit": (f"[chip]\nclock = {_figure(1.5, None)}\n", "chip.clock: missing 'unit'"),
    "wrong unit": (f"[chip]\nclock = {_figure(1.5, 'GB/s')}\n", "unknown unit 'GB/s' for a frequency; allowed: Hz"),
    "bare number": ("[chip]\nclock = 1.5\n", "chip.clock: 1.5 is not a figure, write { value = "),
    "link to an IPU that is not there": (
        "[ipu_machine.bundles.rung0]\nbetween = [0, 4]\n",
        "ipu_machine.bundles.rung0.between: IPU 4 is not there, an IPU-Machine has IPUs 0 to 3",
    ),
    "link of an IPU to itself": ("[ipu_machine.bundles.rung0]\nbetween = [2, 2]\n", "[2, 2] joins an IPU to itself"),
    "no TOML": ("[chip\n", "not valid TOML"),
}


@pytest.mark.parametrize(("text", "message"), MACHINES.values(), ids=MACHINES)
def test_wrong_machine_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "pod4"\n' + text, encoding="utf-8")
    with pytest.raises(MachineError) as caught:
        load_machine(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_an_unknown_machine_lists_what_there_is() -> None:
    with pytest.raises(MachineError, match=r"unknown machine 'pod5' \(did you mean pod.*presets: .*gc200-1.*pod64"):
        load_machine("pod5")


def test_a_machine_file_of_an_unknown_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "pod32"\n', encoding="utf-8")
    with pytest.raises(MachineError, match=r"mine\.toml: extends: unknown machine 'pod32'"):
        load_machine(path)
