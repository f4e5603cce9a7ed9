"""``popxl.Session``: running a program and moving data between host and device (``docs/reference/popxl.md`` 4).

There is no device: numbers come from the evaluator, durations (for the simulated clock and reports) from the
simulation. ``ipu_hw``, ``ipu_model`` and ``cpu`` run alike; another ``device_desc`` is without effect, which is said.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from numbers import Number
from typing import Any

import numpy as np

from ipuperf import ir as _ir
from ipuperf.base.near_names import instead_of
from ipuperf.frontends.options import POPXL as EFFECTS
from ipuperf.frontends.popart import DeviceInfo
from ipuperf.ir import converted
from ipuperf.lowering.placement import ipus_per_replica
from ipuperf.ops.transfers.remote import check_entries, check_remote_order
from ipuperf.runtime.executable import Executable, HostOptions

from .arguments import checked_kinds
from .data import check_remote_variables
from .handle import Constant, Tensor, Variable
from .ir import Ir
from .streams import DeviceToHostStream, HostToDeviceStream
from .utils import downcast_np_dtypes, host_array

h2dStreamBufferMaps = Mapping[HostToDeviceStream, np.ndarray | Any]
d2hStreamBufferMaps = Mapping[DeviceToHostStream, np.ndarray]


_DEVICES = ("ipu_hw", "ipu_model", "cpu")


def _caller() -> str:
    """Name of the user's function that builds the session, for reports; ``session`` at module level."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "ipuperf":
            name = frame.f_code.co_name
            return name if name.isidentifier() else "session"
        frame = frame.f_back
    return "session"


def _given_name(key: Any, expected: Iterable[Any]) -> str:
    """A stream that is not wanted, for an error message; one of another program is called so."""
    name = getattr(key, "tensor_id", None)
    if name is None:
        return repr(key)
    return f"{name!r} of another Ir" if name in {s.tensor_id for s in expected} else repr(name)


def _check_device(device: str, program: _ir.Ir) -> None:
    """ValueError for a device of no kind, or for one CPU in place of several IPUs (``popxl/utils.py``)."""
    devices = ipus_per_replica(program) * program.replication_factor
    if device == "cpu" and devices > 1:
        raise ValueError(
            f"device_desc is 'cpu', which stands for one IPU; the program needs {devices}: 'ipu_model' or 'ipu_hw'"
        )
    if device not in _DEVICES and not re.search("ipu|pod|bow|mk|c600", device, re.IGNORECASE):
        raise ValueError(f"device_desc is {device!r}{instead_of(device, _DEVICES)}, or the name of an IPU system")


def _check_main(program: _ir.Ir) -> None:
    """RuntimeError when the main graph has inputs, which nothing fills."""
    if names := [t.id for t in program.main_graph.inputs]:
        raise RuntimeError(
            f"inputs of the main graph: {', '.join(names)}; nothing fills them, use popxl.variable, popxl.constant or "
            "a host stream"
        )


class Session:
    """A program ready to run. Use it as a context manager around ``run``.

    Args:
        ir: the program; from now on it cannot be changed.
        device_desc: ``"ipu_hw"``, ``"ipu_model"``, ``"cpu"``, a system's name or a ``popart.DeviceInfo``.
        weights_to_host_on_exit: copy variables to the host when the context ends.

    Attributes:
        executable: the :class:`~ipuperf.runtime.executable.Executable` that runs the program (not upstream).

    Raises:
        IrError (``popart_exception``): the program cannot be ordered, or an in-place change is ambiguous.
        MachineError: the replicas do not fit the machine of the run.
        ValueError: a remote variable has another size or type than its buffer's entries; a device of no kind, or
            ``"cpu"``, which is the default, for several IPUs.
        RuntimeError: the main graph has inputs, which nothing fills.
    """

    @checked_kinds()
    def __init__(self, ir: Ir, device_desc: str | DeviceInfo = "cpu", weights_to_host_on_exit: bool = True) -> None:
        if not isinstance(device_desc, DeviceInfo):
            _check_device(device_desc, ir._ir)
            EFFECTS.given("Session(device_desc)", device_desc)
        self._ir = ir
        self.device_desc = device_desc
        self.weights_to_host_on_exit = weights_to_host_on_exit
        _check_main(ir._ir)
        check_remote_variables(ir._ir)
        with ir._ir.checked(), ir._ir.deep_calls():
            check_entries(ir._ir)
            check_remote_order(ir._ir)
        ir._checkpoint("Final")
        options = ir._ir.options
        self.executable = Executable(
            ir._ir,
            name=_caller(),
            host=HostOptions(
                options.prefetch_depth,
                callback_threads=options.callback_threads,
                host_processes=ir._ir.host_processes,
            ),
        )
        ir._seal()
        self._variables = ir._ir.variables()
        self._attached = False
        self._was_attached: list[bool] = []
        self._device_newer = False

    @property
    def ir(self) -> Ir:
        """The program."""
        return self._ir

    @property
    def is_attached(self) -> bool:
        """Whether the session is inside its context."""
        return self._attached

    def __enter__(self) -> Session:
        self._was_attached.append(self._attached)
        if not self._attached:
            self._attached = True
            self.weights_from_host()
        return self

    def __exit__(self, error_type: Any, error: Any, traceback: Any) -> None:
        # A session may be entered within itself; only the outermost exit detaches it.
        if self._was_attached.pop():
            return
        try:
            # After an error the device's values may be half-way, so the host keeps its own.
            if self.weights_to_host_on_exit and error_type is None:
                self.weights_to_host()
        finally:
            self._attached = False
            self.executable.unload()

    # -- weights ---------------------------------------------------------------------------------------------------

    def weights_from_host(self) -> None:
        """Copy all variables to the device."""
        self._require_attached("weights_from_host")
        self.executable.evaluator.load_variables()
        self.executable.copied_weights("h2d")
        self._mark_in_sync(True)

    def weights_to_host(self) -> None:
        """Copy all variables to the host, when a run has happened since the last copy. Memory-mapped files are written.

        Raises:
            ValueError: the session is not attached.
        """
        self._require_attached("weights_to_host")
        if self._device_newer:
            self.executable.evaluator.store_variables()
            self.executable.copied_weights("d2h")
            for variable in self._variables:
                if isinstance(variable.data, np.memmap):
                    variable.data.flush()
            self._mark_in_sync(True)

    def _mark_in_sync(self, in_sync: bool) -> None:
        """Note whether the host's copies of the variables are what the device holds."""
        self._device_newer = not in_sync
        for variable in self._variables:
            variable.in_sync = in_sync

    def get_tensor_data(self, tensor: Tensor) -> np.ndarray:
        """The host's data of a variable or constant: a view (of a memory-mapped variable the array itself), brought up
        to date when the session is attached.

        Raises:
            TypeError: another tensor; ValueError: a tensor of another program.
        """
        return self.get_tensors_data([tensor])[tensor]

    def get_tensors_data(self, tensors: Iterable[Tensor]) -> dict[Tensor, np.ndarray]:
        """:meth:`get_tensor_data` of several tensors, with one copy from the device."""
        handles: list[Any] = list(tensors)
        for tensor in handles:
            if not isinstance(tensor, (Variable, Constant)):
                raise TypeError(f"{tensor!r} is not of type Constant or Variable; store it to a host stream instead")
            self._check_owner(tensor)
        if self._attached:
            self.weights_to_host()
        arrays = {t: t._ir_tensor.data for t in handles}
        return {t: data if isinstance(data, np.memmap) else data[...] for t, data in arrays.items()}

    def write_variable_data(self, tensor: Variable, data: Any) -> None:
        """Set a variable on the host and, when attached, on the device. See :meth:`write_variables_data`."""
        self.write_variables_data({tensor: data})

    def write_variables_data(self, data: Mapping[Variable, Any]) -> None:
        """Set several variables, with one copy to the device.

        Raises:
            TypeError: not a variable, or data of another dtype than its (a number of Python may be any); ValueError:
                wrong shape; NotImplementedError: a variable whose retrieval mode is ``all_replicas``.
        """
        # All data are checked before one variable is written.
        checked = [(t, self._checked_data(t, value)) for t, value in data.items()]
        # Other variables may be newer on the device, and loading all of them would overwrite those.
        if self._attached:
            self.weights_to_host()
        for tensor, array in checked:
            tensor._variable.data[...] = array
        if self._attached:
            self.weights_from_host()

    def _checked_data(self, tensor: Variable, value: Any) -> np.ndarray:
        if not isinstance(tensor, Variable):
            name = getattr(tensor, "id", repr(tensor))
            raise TypeError(f"Tensor {name} is not of type Variable; only variables are written by the host")
        self._check_owner(tensor)
        if tensor.retrieval_mode == "all_replicas" and self._ir.replication_factor > 1:
            raise NotImplementedError(f"variable {tensor.id!r}: writing with retrieval_mode='all_replicas'")
        kind, subject = tensor.dtype.as_numpy(), f"variable {tensor.id!r}"
        array = self._in_dtype(value, kind, subject, isinstance(value, Number), TypeError)
        if array.shape != tensor.shape_on_host:
            raise ValueError(f"variable {tensor.id!r}: got shape {array.shape}, expected {tensor.shape_on_host}")
        return array

    def _check_owner(self, tensor: Tensor) -> None:
        if tensor._ir_tensor.graph.ir is not self._ir._ir:
            raise ValueError(f"tensor {tensor.id!r} belongs to another Ir than this session")

    def _require_attached(self, action: str) -> None:
        if not self._attached:
            raise ValueError(f"{action}: the session is not attached to a device; use `with session:`")

    # -- streams ---------------------------------------------------------------------------------------------------

    def expected_inputs(self) -> list[HostToDeviceStream]:
        """Streams that a run reads."""
        return [HostToDeviceStream(s) for s in self.executable.evaluator.required_inputs()]

    def _expected_outputs(self) -> list[DeviceToHostStream]:
        """Streams that a run writes."""
        return [DeviceToHostStream(s) for s in self.executable.evaluator.produced_outputs()]

    def _leading(self) -> tuple[int, ...]:
        """Leading axes of host arrays: transfers and replicas, each only when above 1."""
        return tuple(n for n in (self._ir.num_host_transfers, self._ir.instance_replication_factor) if n > 1)

    def _full_input_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the host array of an input stream whose slices have ``shape``."""
        return (*self._leading(), *shape)

    def _full_output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the host array of an output stream whose slices have ``shape``."""
        return (*self._leading(), *shape)

    def create_host_outputs(self) -> dict[DeviceToHostStream, np.ndarray]:
        """Arrays for :meth:`run_with_outputs`, zero."""
        return {s: np.zeros(self._full_output_shape(s.shape), s.dtype.as_numpy()) for s in self._expected_outputs()}

    # -- runs ------------------------------------------------------------------------------------------------------

    def run(
        self, inputs: h2dStreamBufferMaps | None = None, downcast_inputs: bool = True
    ) -> dict[DeviceToHostStream, np.ndarray]:
        """Run the program once.

        Args:
            inputs: host data per stream, ``(transfers,) (replicas,) *shape`` with the axes in brackets only when there
                is more than one; more transfers than needed are allowed. Arrays, torch tensors and lists.
            downcast_inputs: accept 64-bit data for streams of 32 bits, when the values fit.

        Returns:
            New arrays per output stream, with the same leading axes.

        Raises:
            ValueError: outside of the session's context, missing or unexpected streams, wrong shape or dtype.
        """
        self._require_attached("run")
        arrays = self._validate_run_inputs(inputs, downcast_inputs)
        # Said before the run, because an interrupted one may have changed variables too.
        self._mark_in_sync(False)
        outputs = self.executable.run(arrays)
        return {DeviceToHostStream(s): array.reshape(self._full_output_shape(s.shape)) for s, array in outputs.items()}

    def run_with_outputs(
        self,
        inputs: h2dStreamBufferMaps | None = None,
        outputs: d2hStreamBufferMaps | None = None,
        downcast_inputs: bool = True,
    ) -> None:
        """As :meth:`run`, writing into the given ``outputs`` (one array per output stream).

        Raises:
            ValueError: missing or unexpected output streams, an array of another shape or dtype.
        """
        arrays = self._by_stream("output", outputs)
        self._validate_run_outputs(arrays)
        for stream, array in self.run(inputs, downcast_inputs).items():
            arrays[stream][...] = array

    def _validate_run_inputs(
        self, inputs: h2dStreamBufferMaps | None, downcast_inputs: bool = True
    ) -> dict[_ir.Stream, np.ndarray]:
        """Check the inputs and bring them to ``(transfers, replicas, *shape)``."""
        arrays, expected = self._by_stream("input", inputs), self.expected_inputs()
        self._same_streams("input", set(arrays), expected)
        return {s._ir: self._input_array(s, arrays[s], downcast_inputs) for s in expected}

    @staticmethod
    def _by_stream(kind: str, arrays: Mapping[Any, Any] | None) -> dict[Any, Any]:
        """Data by stream; TypeError for anything but a mapping."""
        if arrays is not None and not isinstance(arrays, Mapping):
            raise TypeError(f"run: {kind}s are a {type(arrays).__name__}; give a dict of streams and arrays")
        return dict(arrays or {})

    @staticmethod
    def _same_streams(kind: str, streams: set[Any], expected: Iterable[Any]) -> None:
        required = list(expected)
        missing = ", ".join(repr(s.tensor_id) for s in required if s not in streams)
        surplus = ", ".join(_given_name(s, required) for s in streams if s not in required)
        if missing:
            instead = f"; given instead: {surplus}" if surplus else ""
            raise ValueError(
                f"run: {kind} stream(s) missing: {missing}; expected {[s.tensor_id for s in required]}{instead}"
            )
        if surplus:
            raise ValueError(
                f"run: unexpected {kind} stream(s): {surplus}; expected {[s.tensor_id for s in required]} (a stream "
                "without a load or store op takes no data)"
            )

    def _input_array(self, stream: HostToDeviceStream, value: Any, downcast: bool = True) -> np.ndarray:
        expected = self._full_input_shape(stream.shape)
        element_type = stream.dtype.as_numpy()
        if type(value) is np.ndarray and value.dtype == element_type:
            array = value
        else:
            subject = f"run: input stream {stream.tensor_id!r} of shape {expected}"
            array = self._in_dtype(value, element_type, subject, downcast)
        transfers = self._ir.num_host_transfers
        if not self._fits(array.shape, stream.shape):
            larger = " (the first axis may be longer)" if transfers > 1 else ""
            raise ValueError(
                f"run: input stream {stream.tensor_id!r}: got shape {array.shape}, expected {expected}{larger}: "
                f"{transfers} host transfer(s), {self._ir.replication_factor} replica(s), slices of {stream.shape}"
            )
        return array.reshape((-1, self._ir.replication_factor, *stream.shape))

    def _fits(self, shape: tuple[int, ...], slices: tuple[int, ...]) -> bool:
        """Whether a host array of this shape has the slices of a stream, and as many as a run takes or more; a slice of
        one element may have any number of axes of length one (``(transfers, replicas, 1)`` for a scalar)."""
        leading = self._leading()
        outer, slice_shape = shape[: len(leading)], shape[len(leading) :]
        if len(outer) < len(leading):
            return False
        if self._ir.num_host_transfers > 1:
            outer = (min(outer[0], leading[0]), *outer[1:])
        scalars = math.prod(slices) == math.prod(slice_shape) == 1
        return outer == leading and (scalars or slice_shape == slices)

    @staticmethod
    def _in_dtype(
        value: Any, element_type: np.dtype, subject: str, downcast: bool = True, error: type[Exception] = ValueError
    ) -> np.ndarray:
        """Host data as an array of ``element_type``: that type, or its 64-bit counterpart when the values fit.

        Raises:
            error: another type; ValueError: integers that do not fit.
        """
        if element_type.names and isinstance(value, np.ndarray) and value.dtype == element_type:
            return value
        array = host_array(value, subject)
        if element_type not in (array.dtype, downcast_np_dtypes.get(array.dtype) if downcast else None):
            raise error(f"{subject}: got dtype {array.dtype.name}, expected {element_type.name}")
        return converted(array, element_type, subject)

    def _validate_run_outputs(self, outputs: Mapping[Any, np.ndarray]) -> None:
        """ValueError unless there is one array of the right shape and dtype per output stream."""
        expected = self._expected_outputs()
        self._same_streams("output", set(outputs), expected)
        for stream in expected:
            array, shape = outputs[stream], self._full_output_shape(stream.shape)
            if array.shape != shape or array.dtype != stream.dtype.as_numpy():
                raise ValueError(
                    f"run: output stream {stream.tensor_id!r}: got {array.shape} {array.dtype.name}, expected {shape} "
                    f"{stream.dtype.name}"
                )

    def __repr__(self) -> str:
        return f"Session[ir={self._ir.id}, device={self.device_desc!r}, attached={self._attached}]"
