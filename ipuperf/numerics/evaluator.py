"""The evaluator runs a program's mathematics in NumPy.

The main graph is compiled once into a flat list of functions without arguments, bound to arrays that live as long as
the evaluator. A run is a Python loop over that list. All replicas run together along the leading axis.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from ipuperf import ir
from ipuperf.ops.control import modified_graph_inputs
from ipuperf.ops.crew import threads, working
from ipuperf.ops.libraries import OneThread

from . import host
from .compiler import Code, Compiler
from .errors import EvaluationError
from .memory import aligned_zeros
from .room import out_of_room, room_for, variable_bytes
from .streams import StreamedInput


class Evaluator:
    """A compiled program and the state of its device.

    Args:
        program: the whole program; it must not change afterwards.
        exceptions: the kinds of floating-point exceptions that end a run (:data:`.exceptions.KINDS`).

    Attributes:
        variables: device arrays ``(R, *shape)`` of the variables on chip (the shard, for sharded ones); zero until
            :meth:`load_variables`.
        remote: contents of the remote buffers, ``(R, entries, *shape)``.

    Raises:
        ir.IrError: ordering errors (:meth:`ipuperf.ir.Ir.checked`); ``IPUPERF_THREADS`` is no positive integer.
        EvaluationError: an op or tensor has no value.
        HostMemoryError: the values need more than the host's free memory; none is written yet.
    """

    def __init__(self, program: ir.Ir, *, exceptions: Collection[str] = ()) -> None:
        self.program = program
        self._exceptions = exceptions
        self._threads = threads()
        byte_counts: list[int] = []
        with program.checked(), program.deep_calls(), room_for(program, byte_counts), working(self._threads):
            # All memory is allocated here, so a program that is too large fails before its first run.
            self._code = tuple(self._compiled())
            byte_counts += [self._compiler.memory_bytes, variable_bytes(program)]
        self._readers = {
            stream: self._compiler.readers[stream] for stream in program.streams() if stream in self._compiler.readers
        }
        self._writers = {
            stream: self._compiler.writers[stream] for stream in program.streams() if stream in self._compiler.writers
        }

    def _compiled(self) -> Code:
        """Allocate the arrays of the device and compile the program."""
        program, replicas = self.program, self.program.replication_factor
        self.variables: dict[ir.Variable, np.ndarray] = {
            variable: aligned_zeros((replicas, *variable.spec.shape), variable.dtype.numpy, f"variable {variable.id!r}")
            for variable in program.variables()
            if variable.remote is None
        }
        self.remote: dict[ir.RemoteBuffer, np.ndarray] = {
            buffer: aligned_zeros((replicas, buffer.entries, *buffer.shape), buffer.dtype.numpy, repr(buffer))
            for buffer in program.remote_buffers
        }
        self._compiler = Compiler(replicas, self.variables, self.remote, exceptions=self._exceptions)
        # Callees first, so that the recursive query finds their answers in the cache.
        for graph in program.callees_first():
            modified_graph_inputs(graph)
        code: Code = []
        self._compiler.frame(program.main_graph, [], code)
        return code

    # -- variables -------------------------------------------------------------------------------------------------

    def _device(self, variable: ir.Variable) -> np.ndarray:
        """The array of a variable, ``(R, *shape)``; for remote variables a view of its entry."""
        if variable.remote is None:
            return self.variables[variable]
        buffer, entry = variable.remote
        if not 0 <= entry < buffer.entries:
            raise EvaluationError(f"variable {variable.id!r}: entry {entry} of {buffer} does not exist")
        return self.remote[buffer][:, entry]

    def load_variables(self, only: Iterable[ir.Variable] | None = None) -> None:
        """Copy variables (default: all) from the host to the device: to each replica its group's value or its shard."""
        for variable in self.program.variables() if only is None else only:
            np.copyto(self._device(variable), host.to_device(variable), casting="same_kind")

    def store_variables(self, only: Iterable[ir.Variable] | None = None) -> None:
        """Copy variables (default: all) from the device to their host data, in place where the shape stays."""
        for variable in self.program.variables() if only is None else only:
            host.write_back(variable, host.from_device(variable, self._device(variable)))

    # -- runs ------------------------------------------------------------------------------------------------------

    def required_inputs(self) -> list[ir.Stream]:
        """Input streams that a run reads."""
        return list(self._readers)

    def produced_outputs(self) -> list[ir.Stream]:
        """Output streams that a run writes."""
        return list(self._writers)

    @property
    def memory_bytes(self) -> int:
        """Bytes of host memory that hold device state and intermediates."""
        state = [*self.variables.values(), *self.remote.values()]
        return self._compiler.memory_bytes + sum(array.nbytes for array in state)

    def run(self, inputs: Mapping[ir.Stream, np.ndarray | StreamedInput] | None = None) -> dict[ir.Stream, np.ndarray]:
        """Execute the main graph once.

        Args:
            inputs: for each required stream an array ``(transfers, R, *shape)``; a stream that is loaded several times
                per run needs as many slices.

        Returns:
            For each written stream an array ``(transfers, R, *shape)``, new in each run; ``transfers`` is the stream's
            or the program's ``num_host_transfers``.

        Raises:
            EvaluationError: missing or unexpected streams, wrong shape or type, too few slices.
            FloatingPointException: see ``exceptions``.
            HostMemoryError: the host ran out of memory.
        """
        self._open_inputs({} if inputs is None else inputs)
        replicas = self.program.replication_factor
        outputs: dict[ir.Stream, np.ndarray] = {}
        try:
            for stream, writer in self._writers.items():
                outputs[stream] = np.empty((self._transfers(stream), replicas, *stream.shape), stream.dtype.numpy)
                writer.open(outputs[stream])
            # As on the device, NaN and infinities are results and no warnings.
            with np.errstate(all="ignore"), OneThread(), working(self._threads):
                for step in self._code:
                    step()
        except MemoryError as error:
            raise out_of_room(self.program, error) from None
        for writer in self._writers.values():
            # Slices that no store has written must not show old memory.
            writer.close()
        return outputs

    def _transfers(self, stream: ir.Stream) -> int:
        """Slices of a stream in one run."""
        return self.program.num_host_transfers if stream.transfers is None else stream.transfers

    def _open_inputs(self, inputs: Mapping[ir.Stream, np.ndarray | StreamedInput]) -> None:
        if inputs.keys() != self._readers.keys():
            missing = ", ".join(repr(stream.id) for stream in self._readers if stream not in inputs)
            surplus = ", ".join(repr(stream.id) for stream in inputs if stream not in self._readers)
            raise EvaluationError(
                "run: "
                + "; ".join(
                    f"{problem} {names}" for problem, names in (("missing", missing), ("unexpected", surplus)) if names
                )
            )
        for stream, reader in self._readers.items():
            array = inputs[stream]
            expected = (self.program.replication_factor, *stream.shape)
            if array.shape[1:] != expected or array.dtype != stream.dtype.numpy:
                raise EvaluationError(
                    f"run: stream {stream.id!r} needs (transfers, {', '.join(map(str, expected))}) "
                    f"{stream.dtype.name}, got {array.shape} {array.dtype.name}"
                )
            transfers = self._transfers(stream)
            if len(array) < transfers:
                raise EvaluationError(
                    f"run: stream {stream.id!r} needs at least {transfers} transfers, got {len(array)}"
                )
            reader.open(array)
