"""Programs in files (:mod:`~ipuperf.poptorch.executor.executable_file`)."""

from __future__ import annotations

from typing import Any

from ..errors import Error
from ..export.structure import rebuild
from ..optimisers.replica_groups import one_replica
from . import executable_file
from .compiling import Compiling
from .executable_file import StoredProgram, description_of


class Files(Compiling):
    """Saves programs and loads them."""

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these and write the program into a file, see :meth:`save`."""
        if self._compiled is None:
            self._compile(self._arguments(args, kwargs))
        self.save(filename, export_model)

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program into a file (in a folder: ``model.poptorch``).

        Args:
            export_model: also what :func:`load` needs to do without the module: options, numbers of parameters and
                buffers, the optimiser's numbers. The state of the optimiser is not part of it.
            save_rng_state: with ``export_model``: also the state of the random numbers.

        Raises:
            Error: not compiled, or the program has something that no file can hold.
        """
        exported = self._require().exported
        self.copyWeightsToHostIfNeeded()
        random = self.rng_state if save_rng_state else None
        executable_file.write(
            filename,
            training=self._training,
            traced=exported.traced,
            arguments=exported.arguments,
            leaves=[(spec.shape, spec.dtype) for spec in exported.inputs],
            signature=exported.signature,
            model=self._description(random) if export_model else None,
        )

    def _description(self, random: list[int] | None) -> dict[str, Any]:
        made = description_of(self._options, self._model, self._optimiser, random)
        return {**made, "grouped": {name: list(map(int, given)) for name, given in self.per_replica_params.items()}}

    def loadExecutable(self, filename: str) -> None:
        """Compile from a file that :meth:`save` or :meth:`compileAndExport` has written, without exporting the module.

        Raises:
            Error: already compiled; a program of the other kind (training, inference) or of another module; a file that
                is not ours, is damaged, or of another version.
        """
        if self._compiled is not None:
            raise Error(f"loadExecutable({filename!r}): the model is already compiled")
        stored = executable_file.read(filename)
        kinds = {True: "training", False: "inference"}
        if stored.training != self._training:
            raise Error(
                f"{filename}: holds a program for {kinds[stored.training]}, this is a model for {kinds[self._training]}"
            )
        self._compile_stored(stored)

    def _compile_stored(self, stored: StoredProgram) -> None:
        with one_replica(self._model, self.per_replica_params, self._options.replication_factor):
            missing = stored.missing_in(self._model)
        if missing:
            raise Error(f"the stored program is that of another module: {'; '.join(missing)}")
        self._options._freeze()
        arguments = rebuild(stored.arguments, stored.leaves.__getitem__)
        self._finish(lambda: self._built(arguments, None, stored.traced))
