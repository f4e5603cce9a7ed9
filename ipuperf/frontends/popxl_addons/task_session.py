"""``TaskSession``: a session that knows the streams and the state of its task, and saves and loads checkpoints.

A checkpoint is a folder: ``model/<name>.npz`` for each tensor of the state (for one that is a memory-mapped file, that
file), ``session_info.json``, and ``dataloader.bin`` if the session has a data loader. ``wandb://<name>`` names one that
Weights & Biases keeps.

Source: popxl-addons: popxl_addons/task_session.py.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from ipuperf.frontends import popxl
from ipuperf.frontends.popxl.arguments import checked_arguments
from ipuperf.frontends.popxl.session import h2dStreamBufferMaps

from .named_tensors import NamedTensorData, NamedTensors
from .streams import InputStreams, OutputStreams
from .utils import timer

ReportMissingMethods = Literal["none", "warn", "error"]

_WANDB = "wandb://"
_MODEL, _SESSION_INFO, _DATALOADER = "model", "session_info.json", "dataloader.bin"
_LOG = logging.getLogger(__name__)


@checked_arguments
def write_variables_pb(session: popxl.Session, weights: Mapping[popxl.Variable, Any]) -> None:
    """``session.write_variables_data(weights)``; upstream goes past its checks."""
    session.write_variables_data(weights)


class TaskSession(popxl.Session):
    """A session with the streams and the state of a task.

    Args:
        inputs, outputs: the task's streams, or any collection of streams.
        state: the variables that checkpoints hold.
        max_checkpoints: how many checkpoints of this session stay on the disk; saving another deletes the oldest.
        args, kwargs: of :class:`popxl.Session`.

    Attributes:
        session_state: what a checkpoint keeps besides tensors: ``steps``, the number of runs so far, and what
            :meth:`add_session_state_info` adds.
    """

    @checked_arguments
    def __init__(
        self,
        inputs: InputStreams | Iterable[popxl.HostToDeviceStream],
        outputs: OutputStreams | Iterable[popxl.DeviceToHostStream],
        state: NamedTensors,
        max_checkpoints: int = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        with timer("PopXL compilation"):
            super().__init__(*args, **kwargs)
        self.inputs = inputs if isinstance(inputs, InputStreams) else InputStreams.from_streams(inputs)
        self.outputs = outputs if isinstance(outputs, OutputStreams) else OutputStreams.from_streams(outputs)
        self.state = state
        self.session_state: dict[str, Any] = {"steps": 0}
        self._dataloader: Any = None
        self._saved: deque[Path] = deque()
        self._max_checkpoints = max_checkpoints

    @checked_arguments
    def run(
        self, inputs: h2dStreamBufferMaps | None = None, downcast_inputs: bool = True
    ) -> dict[popxl.DeviceToHostStream, np.ndarray]:
        """As :meth:`popxl.Session.run`; counted in ``session_state["steps"]``."""
        self.session_state["steps"] += 1
        return super().run(inputs, downcast_inputs)

    @checked_arguments
    def add_session_state_info(self, info: Mapping[str, Any]) -> None:
        """Add to what checkpoints keep besides tensors; values must be such as JSON has."""
        self.session_state.update(info)

    @property
    def dataloader(self) -> Any:
        """The data loader whose position checkpoints keep: an object with ``save(path)`` and ``resume(filename=path)``.

        Raises:
            ValueError: set to an object without these methods.
        """
        if self._dataloader is None:
            _LOG.warning("no dataloader is set: checkpoints do not hold the position in the data")
        return self._dataloader

    @dataloader.setter
    def dataloader(self, loader: Any) -> None:
        if not (hasattr(loader, "save") and hasattr(loader, "resume")):
            raise ValueError(f"a dataloader needs the methods save and resume; {type(loader).__name__} lacks them")
        self._dataloader = loader

    # -- state -----------------------------------------------------------------------------------------------------

    def get_named_tensors_data(self) -> NamedTensorData:
        """The data of the state on the host, by name; brought up to date when the session is attached."""
        data = self.get_tensors_data(self.state.tensors)
        return NamedTensorData.from_dict({name: data[t] for name, t in self.state.to_dict().items()})

    @checked_arguments
    def load_from_session(self, src: TaskSession, report_missing: ReportMissingMethods = "none") -> None:
        """Copy the state of another session, by name.

        Raises:
            ValueError: the names differ and ``report_missing`` is ``"error"``.
        """
        data, variables = src.get_named_tensors_data().to_dict(), self.state.to_dict()
        _report_missing(data, variables, report_missing)
        shared = {cast(popxl.Variable, variables[name]): data[name] for name in variables if name in data}
        self.write_variables_data(shared)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    @checked_arguments
    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Save the state, the session's information and the data loader's position.

        Args:
            checkpoint_dir: the folder, made if need be, or ``wandb://<name>``.
        """
        state = self.get_named_tensors_data().to_dict()
        with timer(f"Saving checkpoint {checkpoint_dir}"):
            if str(checkpoint_dir).startswith(_WANDB):
                self._save_to_wandb(str(checkpoint_dir).removeprefix(_WANDB), state)
                return
            folder = Path(checkpoint_dir).expanduser()
            self._make_room(folder)
            self._save(folder, state)
            self._saved.append(folder)

    @checked_arguments
    def load_checkpoint(
        self, checkpoint_dir: str, report_missing: ReportMissingMethods = "warn", skip_memmap: bool = False
    ) -> None:
        """Load what :meth:`save_checkpoint` saved, on the host and, when attached, on the device.

        Args:
            report_missing: what happens when names in the checkpoint and in the state differ: those in both are loaded
                (``"none"``, ``"warn"``), or none (``"error"``). A checkpoint of tensors alone leaves the rest as it is.
            skip_memmap: leave variables that are memory-mapped files as they are.

        Raises:
            FileNotFoundError: there is no such checkpoint; ValueError: names differ.
        """
        with timer(f"Loading checkpoint {checkpoint_dir}"):
            if str(checkpoint_dir).startswith(_WANDB):
                name = str(checkpoint_dir).removeprefix(_WANDB)
                folder = Path(_wandb().use_artifact(name, type="checkpoints").download())
            else:
                folder = Path(checkpoint_dir).expanduser()
            self._load(folder, report_missing, skip_memmap)

    def _make_room(self, folder: Path) -> None:
        """Delete the oldest checkpoints of this session until another fits; one in the same folder is replaced."""
        if folder in self._saved:
            self._saved.remove(folder)
        while len(self._saved) >= self._max_checkpoints:
            oldest = self._saved.popleft()
            _LOG.info("deleting the old checkpoint %s", oldest)
            shutil.rmtree(oldest, ignore_errors=True)

    def _save(self, folder: Path, state: Mapping[str, np.ndarray]) -> None:
        model = folder / _MODEL
        model.mkdir(parents=True, exist_ok=True)
        for name, data in state.items():
            mapped = memory_map(data)
            if mapped is None:
                named: dict[str, Any] = {name: data}
                np.savez(model / f"{name}.npz", **named)
            else:
                shutil.copyfile(_file(mapped), model / _file(mapped).name)
        if self.dataloader is not None:
            self.dataloader.save(str(folder / _DATALOADER))
        (folder / _SESSION_INFO).write_text(json.dumps(self.session_state), encoding="utf-8")

    def _save_to_wandb(self, name: str, state: Mapping[str, np.ndarray]) -> None:
        wandb = _wandb()
        artifact = wandb.Artifact(name=name, type="checkpoints")
        with tempfile.TemporaryDirectory() as folder:
            self._save(Path(folder), state)
            artifact.add_dir(folder)
        wandb.log_artifact(artifact)

    def _load(self, folder: Path, report_missing: ReportMissingMethods, skip_memmap: bool) -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no checkpoint {folder}")
        file = folder / _SESSION_INFO
        information = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        arrays = {path.stem: partial(_array, path, path.stem) for path in (folder / _MODEL).glob("*.npz")}
        variables, skipped = self.state.to_dict(), set()
        for name, data in self.get_named_tensors_data().to_dict().items():
            mapped = memory_map(data)
            if mapped is not None and skip_memmap:
                skipped.add(name)
            elif mapped is not None and (saved := folder / _MODEL / _file(mapped).name).exists():
                arrays[name] = partial(_mapped_array, saved, mapped, data.shape)
        _report_missing(arrays, variables.keys() - skipped, report_missing)
        _report_missing(information, self.session_state, report_missing)
        loaded = {cast(popxl.Variable, variables[name]): arrays[name]() for name in variables if name in arrays}
        self.write_variables_data(loaded)
        if self.dataloader is not None:
            self.dataloader.resume(filename=str(folder / _DATALOADER))
        self.session_state = information or self.session_state

    # -- Weights & Biases ------------------------------------------------------------------------------------------

    @checked_arguments
    def wandb_histogram(self, name: str, step: int, data: np.ndarray) -> None:
        """Log a histogram of the finite elements of ``data`` to Weights & Biases, and how many are not finite."""
        wandb = _wandb()
        values = np.ravel(data).astype(np.float32)
        finite = np.isfinite(values)
        log = {f"{name}:histogram": wandb.Histogram(values[finite]), f"{name}:not_finite": int((~finite).sum())}
        wandb.log(log, step=step)

    @checked_arguments
    def wandb_variable_histograms(self, step: int = 0) -> None:
        """:meth:`wandb_histogram` of each variable of the program."""
        for tensor, data in self.get_tensors_data(self.ir.main_graph.variables).items():
            self.wandb_histogram(tensor.name, step, data)


def initialise_memmap_dir_from_checkpoint(checkpoint_dir: str, memmap_dir: str) -> None:
    """Copy the memory-mapped variables of a checkpoint into ``memmap_dir``, from where factories take them."""
    for file in sorted((Path(checkpoint_dir) / _MODEL).glob("*.npy")):
        shutil.copyfile(file, Path(memmap_dir) / file.name)


def memory_map(data: np.ndarray) -> np.memmap | None:
    """The file that ``data`` is mapped from, flushed; None for data in memory."""
    root: np.memmap | None = None
    base: Any = data
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap) and base.filename is not None:
            root = base
        base = base.base
    if root is not None:
        root.flush()
    return root


def _file(mapped: np.memmap) -> Path:
    return Path(str(mapped.filename))


def _array(file: Path, name: str) -> np.ndarray:
    """The array of a file of a checkpoint."""
    with np.load(file) as loaded:
        array: np.ndarray = loaded[name]
    return array


def _mapped_array(file: Path, mapped: np.memmap, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of a checkpoint's copy of a mapped file."""
    return np.memmap(file, mapped.dtype, "r", mapped.offset, mapped.shape).reshape(shape)


def _report_missing(names: Iterable[str], expected: Iterable[str], method: ReportMissingMethods) -> None:
    """Say which names only one side has.

    Raises:
        ValueError: there are such names and ``method`` is ``"error"``.
    """
    surplus, missing = sorted(set(names) - set(expected)), sorted(set(expected) - set(names))
    parts = [f"Checkpoint keys not in state: {surplus}"] if surplus else []
    parts += [f"State keys not in checkpoint: {missing}"] if missing else []
    if not parts or method == "none":
        return
    if method == "error":
        raise ValueError("; ".join(parts))
    _LOG.warning("; ".join(parts))


def _wandb() -> Any:
    """The package wandb.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import wandb
    except ImportError as error:
        raise ImportError(
            "checkpoints at wandb://... and histograms need the package wandb (pip install wandb)"
        ) from error
    return wandb
