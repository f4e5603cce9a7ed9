"""``TaskSession``: streams, state, checkpoints on the disk and what a session does with them."""

import json
import logging
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf import popxl
from ipuperf import popxl_addons as addons
from ipuperf.popxl import ops
from ipuperf.popxl_addons.task_session import TaskSession, initialise_memmap_dir_from_checkpoint, memory_map


def adding(start: float = 0.0, names: tuple[str, ...] = ("a", "b"), **kwargs: Any) -> TaskSession:
    """A task that adds its input to each variable in turn and gives the last one back."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        x = popxl.h2d_stream((2,), popxl.float32, "x")
        y = popxl.d2h_stream((2,), popxl.float32, "y")
        loaded = ops.host_load(x)
        state = addons.NamedTensors()
        for number, name in enumerate(names):
            made = popxl.variable(np.full(2, start + number, np.float32), name=name)
            state.insert(f"layer.{name}", made, overwrite=True)
        for variable in state.to_dict().values():
            ops.var_updates.accumulate_(variable, loaded)
        ops.host_store(y, state.to_dict()[f"layer.{names[-1]}"])
    return TaskSession(inputs=[x], outputs=[y], state=state, ir=ir, **kwargs)


def values(session: TaskSession) -> dict[str, list[float]]:
    return {name: data.tolist() for name, data in session.get_named_tensors_data().to_dict().items()}


class Loader:
    """A data loader that writes its position."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    def save(self, path: str) -> None:
        Path(path).write_text(str(self.position), encoding="utf-8")

    def resume(self, filename: str) -> None:
        self.position = int(Path(filename).read_text(encoding="utf-8"))


def test_streams_by_name_position_and_slice() -> None:
    session = adding()
    assert [s.tensor_id for s in session.inputs] == ["x"]
    assert session.inputs.x is session.inputs[0] is session.inputs["x"]
    assert session.inputs[0:] == [session.inputs.x]
    assert session.inputs[1:] == []
    assert session.outputs[0].tensor_id == "y"
    with session:
        out = session.run({session.inputs.x: np.ones(2, np.float32)})
    assert out[session.outputs.y].tolist() == [2, 2]
    assert session.session_state == {"steps": 1}


def test_given_streams_are_kept() -> None:
    ir = popxl.Ir()
    with ir.main_graph:
        inputs = addons.InputStreams(x=((2,), popxl.float32))
        outputs = addons.OutputStreams()
    session = TaskSession(inputs, outputs, addons.NamedTensors(), ir=ir)
    assert session.inputs is inputs
    assert session.outputs is outputs


def test_checkpoint_gives_state_steps_and_position(tmp_path: Path) -> None:
    session, folder = adding(), tmp_path / "deep" / "checkpoint"
    session.dataloader = Loader(7)
    session.add_session_state_info({"lr": 0.5})
    with session:
        session.run({session.inputs.x: np.array([1, 2], np.float32)})
        session.save_checkpoint(str(folder))
    assert {p.name for p in (folder / "model").iterdir()} == {"layer.a.npz", "layer.b.npz"}
    assert np.load(folder / "model" / "layer.a.npz")["layer.a"].tolist() == [1, 2]
    assert json.loads((folder / "session_info.json").read_text(encoding="utf-8")) == {"steps": 1, "lr": 0.5}
    other = adding(start=100)
    other.dataloader = Loader()
    other.load_checkpoint(str(folder), "none")
    assert values(other) == {"layer.a": [1, 2], "layer.b": [2, 3]}
    assert other.session_state == {"steps": 1, "lr": 0.5}
    assert other.dataloader.position == 7
    with other:
        other.load_checkpoint(str(folder), "error")
        assert other.run({other.inputs.x: np.ones(2, np.float32)})[other.outputs.y].tolist() == [3, 4]


def test_names_that_differ(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adding().save_checkpoint(str(tmp_path))
    other = adding(50, ("b", "c"))
    with pytest.raises(ValueError, match=r"not in state: \['layer.a'\]; State keys not in checkpoint: \['layer.c'\]"):
        other.load_checkpoint(str(tmp_path), report_missing="error")
    assert values(other)["layer.b"] == [50, 50]
    with caplog.at_level(logging.WARNING):
        other.load_checkpoint(str(tmp_path))
    assert "layer.c" in caplog.text
    assert values(other) == {"layer.b": [1, 1], "layer.c": [51, 51]}
    with pytest.raises(FileNotFoundError):
        other.load_checkpoint(str(tmp_path / "nowhere"))


def test_a_checkpoint_of_tensors_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    adding().save_checkpoint(str(tmp_path))
    (tmp_path / "session_info.json").unlink()
    other = adding(50)
    other.session_state["steps"] = 7
    with caplog.at_level(logging.WARNING):
        other.load_checkpoint(str(tmp_path))
    assert "State keys not in checkpoint: ['steps']" in caplog.text
    assert (values(other)["layer.a"], other.session_state) == ([0, 0], {"steps": 7})
    with pytest.raises(ValueError, match="steps"):
        other.load_checkpoint(str(tmp_path), "error")


@pytest.mark.parametrize(
    "kind", [list, iter, tuple, lambda streams: dict.fromkeys(streams, 0), dict.fromkeys], ids=range(5)
)
def test_streams_in_any_iterable(kind: Any) -> None:
    session = adding()
    inputs, outputs = kind(session.inputs.streams), kind(session.outputs.streams)
    again = TaskSession(inputs, outputs, session.state, ir=adding().ir)
    assert (again.inputs.streams, again.outputs.streams) == (session.inputs.streams, session.outputs.streams)


def test_old_checkpoints_go(tmp_path: Path) -> None:
    session = adding(max_checkpoints=2)
    for name in ("one", "two", "two", "three"):
        session.save_checkpoint(str(tmp_path / name))
    assert {p.name for p in tmp_path.iterdir()} == {"two", "three"}


def test_state_of_another_session() -> None:
    source, target = adding(), adding(9, ("b", "c"))
    with source:
        source.run({source.inputs.x: np.ones(2, np.float32)})
    target.load_from_session(source)
    assert values(target) == {"layer.b": [2, 2], "layer.c": [10, 10]}
    with pytest.raises(ValueError, match=r"layer\.c"):
        target.load_from_session(source, "error")


def test_a_dataloader_saves_and_resumes(caplog: pytest.LogCaptureFixture) -> None:
    session = adding()
    with pytest.raises(ValueError, match="save and resume; list lacks them"):
        session.dataloader = []
    with caplog.at_level(logging.WARNING):
        assert session.dataloader is None
    assert "position in the data" in caplog.text


class Table(addons.Module):
    """A table in one variable."""

    def build(self, x: popxl.Tensor) -> popxl.Tensor:
        return x + self.add_variable_input("table", partial(np.zeros, (2, 3)), popxl.float32)


def in_files(folder: Path, start: float) -> TaskSession:
    """A session whose state is a mapped file in ``folder``, filled with ``start``."""
    folder.mkdir(exist_ok=True)
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        facts, _ = Table().create_graph(popxl.TensorSpec((2, 3), popxl.float32))
        state = facts.init("model", memmap_dir=str(folder))
        ops.var_updates.accumulate_(state.table, popxl.constant(np.full((2, 3), start, np.float32)))
    session = TaskSession([], [], state, ir=ir)
    with session:
        session.run()
    return session


def test_mapped_variables_are_saved_as_files(tmp_path: Path) -> None:
    session = in_files(tmp_path / "maps", 4)
    session.save_checkpoint(str(tmp_path / "saved"))
    assert [p.name for p in (tmp_path / "saved" / "model").iterdir()] == ["model.table.npy"]
    other = in_files(tmp_path / "others", 7)
    other.load_checkpoint(str(tmp_path / "saved"), "error", skip_memmap=True)
    assert values(other) == {"table": [[7.0] * 3] * 2}
    other.load_checkpoint(str(tmp_path / "saved"), "error")
    assert values(other) == {"table": [[4.0] * 3] * 2}
    assert np.fromfile(tmp_path / "others" / "model.table.npy", np.float32).tolist() == [4] * 6
    initialise_memmap_dir_from_checkpoint(str(tmp_path / "saved"), str(tmp_path))
    assert np.fromfile(tmp_path / "model.table.npy", np.float32).tolist() == [4] * 6
    (tmp_path / "saved" / "model" / "model.table.npy").unlink()
    with pytest.raises(ValueError, match=r"State keys not in checkpoint: \['table'\]"):
        other.load_checkpoint(str(tmp_path / "saved"), "error")


def test_views_of_mapped_files_are_found(tmp_path: Path) -> None:
    mapped = np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.float32, (3, 4))
    assert memory_map(mapped[1:].T) is mapped
    assert memory_map(np.ones(3)) is None


class _Artifacts(types.ModuleType):
    """As much of wandb as checkpoints use: artifacts are folders below ``root``."""

    def __init__(self, root: Path) -> None:
        super().__init__("wandb")
        self.root = root
        self.logged: list[dict[str, Any]] = []

    def Artifact(self, name: str, type: str) -> Any:
        def add_dir(folder: str) -> None:
            Path(folder, "model").rename(self.root / "model")
            Path(folder, "session_info.json").rename(self.root / "session_info.json")

        return types.SimpleNamespace(name=name, type=type, add_dir=add_dir)

    def log_artifact(self, artifact: Any) -> None:
        assert artifact.type == "checkpoints"

    def use_artifact(self, name: str, type: str) -> Any:
        return types.SimpleNamespace(download=lambda: str(self.root))

    def Histogram(self, data: np.ndarray) -> list[float]:
        return sorted(data.tolist())

    def log(self, what: dict[str, Any], step: int) -> None:
        self.logged.append({**what, "at": step})


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = _Artifacts(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    adding(3).save_checkpoint("wandb://task")
    session = adding()
    session.load_checkpoint("wandb://task:latest")
    assert values(session) == {"layer.a": [3, 3], "layer.b": [4, 4]}
    session.wandb_histogram("g", 5, np.array([[2.0, np.inf], [1.0, np.nan]]))
    assert wandb.logged == [{"g:histogram": [1, 2], "g:not_finite": 2, "at": 5}]
    session.wandb_variable_histograms(6)
    assert {key for row in wandb.logged[1:] for key in row} == {
        "a:histogram", "a:not_finite", "b:histogram", "b:not_finite", "at"
    }  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="pip install wandb"):
        session.save_checkpoint("wandb://task")
