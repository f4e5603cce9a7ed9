"""The compiled program: target, graph, programs, memory of every tile, liveness.

Bytes are those of one replica, which stands for all, as in the tables ``tile_memory``, ``variables`` and ``liveness``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from ipuperf.frontends.enumerations import NativeEnum
from ipuperf.trace import MEMORY_CATEGORIES, Trace

from .absent import ReportPart
from .programs import ComputeSet, Program, Programs

GAPS, NOT_ALWAYS = "gaps", "variableNotAlwaysLive"
_NO_ELEMENTS = "variables are not placed in memory elements"
_VARIABLES = ("variableAlwaysLive", NOT_ALWAYS)


class Target(ReportPart):
    """The machine that the program was compiled for; ``clockFrequency`` in Hz, memory in bytes."""

    class Type(NativeEnum):
        """What executed a program; here always ``IpuModel``, a simulation."""

        Ipu = 0
        IpuModel = 1
        Cpu = 2
        Unknown = 3

    ABSENT: ClassVar = {"architecture": "the machine's name is report.trace.meta['machine']"}

    def __init__(self, trace: Trace) -> None:
        meta = trace.meta
        self.type = Target.Type.IpuModel
        self.numIPUs, self.numReplicas = int(meta["num_ipus"]), int(meta["replicas"])
        self.tilesPerIpu, self.bytesPerTile = int(meta["tiles_per_ipu"]), int(meta["bytes_per_tile"])
        self.clockFrequency = meta["clock_hz"]
        self.numTiles = self.numIPUs * self.tilesPerIpu
        self.ipusPerReplica = self.numIPUs // self.numReplicas
        self.tilesPerReplica = self.ipusPerReplica * self.tilesPerIpu
        self.bytesPerIPU = self.tilesPerIpu * self.bytesPerTile
        self.totalMemory = self.numIPUs * self.bytesPerIPU
        self.memoryPerReplica = self.ipusPerReplica * self.bytesPerIPU


class GraphFacts(ReportPart):
    """``numComputeSets``: compute sets of the programs of one replica."""

    ABSENT: ClassVar = dict.fromkeys(
        ("numVertices", "numEdges"), "ipuperf plans vertices by type and does not number them"
    )

    def __init__(self, compute_sets: int) -> None:
        self.numComputeSets = compute_sets


class Total(ReportPart):
    """``total``: bytes of a category."""

    ABSENT: ClassVar = dict.fromkeys(("interleaved", "nonInterleaved", "overflowed"), _NO_ELEMENTS)

    def __init__(self, total: int) -> None:
        self.total = total


class Categories(ReportPart):
    """Bytes by category, for code and other things that are no variables: ``category.vertexCode.total``."""

    ABSENT: ClassVar = dict.fromkeys(_VARIABLES, "see memory.alwaysLiveBytes and memory.notAlwaysLiveBytes")

    def __init__(self, by_name: dict[str, int]) -> None:
        for name in MEMORY_CATEGORIES:
            if name not in (GAPS, *_VARIABLES):
                setattr(self, name, Total(by_name.get(name, 0)))


class Gaps(ReportPart):
    """``includingGaps``, ``excludingGaps``: bytes."""

    def __init__(self, including: int, gaps: int) -> None:
        self.includingGaps = including
        self.excludingGaps = including - gaps


class TileMemory(ReportPart):
    """Bytes of one tile.

    ``total`` is given with and without gaps. ``alwaysLiveBytes`` counts code and all else that is always present.
    ``notAlwaysLiveBytes`` is the peak over program steps. ``category`` has the parts.
    """

    ABSENT: ClassVar = {
        **dict.fromkeys(("interleaved", "nonInterleaved"), _NO_ELEMENTS),
        "overflowed": "what exceeds target.bytesPerTile is total.includingGaps less that",
        "vertices": "their code in all is category.vertexCode.total",
    }

    def __init__(self, by_name: dict[str, int]) -> None:
        gaps, self.notAlwaysLiveBytes = by_name.get(GAPS, 0), by_name.get(NOT_ALWAYS, 0)
        self.total = Gaps(sum(by_name.values()), gaps)
        self.alwaysLiveBytes = self.total.excludingGaps - self.notAlwaysLiveBytes
        self.category = Categories(by_name)


class Tile(ReportPart):
    """``memory``: the memory of one tile."""

    def __init__(self, memory: TileMemory) -> None:
        self.memory = memory


class CompiledIpu(ReportPart):
    """``tiles``: the tiles of one IPU."""

    def __init__(self, tiles: list[Tile]) -> None:
        self.tiles = tiles


class Variable(ReportPart):
    """``name``, and ``size``: its bytes on the IPU or tile in question."""

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size


class LiveMemory(ReportPart):
    """``bytes``, and the ``variables`` that take them, the largest first."""

    def __init__(self, variables: list[Variable], total: int) -> None:
        self.bytes = total
        self.variables = variables


class StepProgram(ReportPart):
    """``name`` of the program of a step of liveness."""

    ABSENT: ClassVar = {"type": "table liveness holds names; compilation.programs have types"}

    def __init__(self, name: str) -> None:
        self.name = name


class LivenessStep(ReportPart):
    """The n-th program step of every IPU of a replica."""

    def __init__(self, liveness: Liveness, step: int) -> None:
        self._liveness = liveness
        self._step = step

    @property
    def program(self) -> StepProgram:
        """The program that runs; an ``AttributeError`` if the IPUs run different programs in their n-th steps."""
        # Python then calls ``__getattr__``, whose message says why.
        if len(self._names) != 1:
            raise AttributeError(name="program")
        return StepProgram(self._names[0])

    @property
    def notAlwaysLiveMemory(self) -> LiveMemory:
        """The memory that is live at this step but not always; an ``AttributeError`` for several IPUs.

        Their steps do not run together, so there is no sum over them.
        """
        if len(self._liveness.ipus) != 1:
            raise AttributeError(name="notAlwaysLiveMemory")
        return self.notAlwaysLiveMemoryForIpu(self._liveness.ipus[0])

    def notAlwaysLiveMemoryForIpu(self, ipu: int) -> LiveMemory:
        """Return the same memory of one IPU; after its last step there is none."""
        self._liveness.require_ipu(ipu)
        row = self._liveness.row.get((ipu, self._step))
        if row is None:
            return LiveMemory([], 0)
        variables = self._liveness.variables.live(ipu, self._step)
        return LiveMemory(variables, int(self._liveness.columns["not_always_live"][row]))

    def notAlwaysLiveMemoryForTile(self, tile: int) -> LiveMemory:
        """Return the same memory of one tile, counted over the IPUs of a replica: the variables on it."""
        ipu, tile = self._liveness.variables.place(tile)
        self._liveness.require_ipu(ipu)
        variables = self._liveness.variables.live(ipu, self._step, tile)
        return LiveMemory(variables, sum(variable.size for variable in variables))

    @property
    def _names(self) -> list[str]:
        rows = [self._liveness.row.get((ipu, self._step)) for ipu in self._liveness.ipus]
        return sorted({str(self._liveness.columns["program"][row]) for row in rows if row is not None})

    def _why(self, name: str) -> str:
        if name == "program":
            return (
                f"the IPUs run different programs in step {self._step} ({', '.join(self._names)}), which "
                "report.trace.table('liveness') has by IPU"
            )
        if name == "notAlwaysLiveMemory":
            return (
                f"the steps of the {len(self._liveness.ipus)} IPUs do not run together, so there is no sum over them: "
                "use notAlwaysLiveMemoryForIpu(i)"
            )
        return super()._why(name)


class Liveness:
    """Table ``liveness`` by IPU and step."""

    def __init__(self, trace: Trace, variables: Variables) -> None:
        self.columns = trace.columns("liveness")
        self.variables = variables
        self.ipus = np.unique(self.columns["ipu"]).tolist()
        keys = zip(self.columns["ipu"].tolist(), self.columns["step"].tolist(), strict=True)
        self.row = {key: row for row, key in enumerate(keys)}

    def require_ipu(self, ipu: int) -> None:
        """Raise ``IndexError`` for an IPU without liveness."""
        if ipu not in self.ipus:
            raise IndexError(f"IPU {ipu}: the trace has the liveness of IPUs {self.ipus} (one replica)")

    def steps(self) -> list[LivenessStep]:
        """Return as many steps as the IPU with the most has."""
        return [LivenessStep(self, step) for step in range(int(self.columns["step"].max(initial=-1)) + 1)]


class Variables:
    """Variables in In-Processor-Memory, from the tables ``variables`` and ``live_intervals``."""

    def __init__(self, trace: Trace) -> None:
        columns = trace.columns("variables")
        on_tile = np.flatnonzero(columns["location"] == "tile")
        self._columns = {name: values[on_tile] for name, values in columns.items()}
        self._intervals = trace.columns("live_intervals")
        self._tiles = int(trace.meta["tiles_per_ipu"])

    def place(self, tile: int) -> tuple[int, int]:
        """Return the IPU, and the tile on it, of a tile counted over the IPUs."""
        return divmod(tile, self._tiles)

    def always(self, ipu: int | None = None, tile: int | None = None) -> list[Variable]:
        """Return the variables that are live at every step."""
        return self._sizes(self._columns["always_live"], ipu, tile)

    def live(self, ipu: int, step: int, tile: int | None = None) -> list[Variable]:
        """Return the variables that are live at a step but not at every one."""
        intervals = self._intervals
        at = (intervals["step_from"] <= step) & (step < intervals["step_to"])
        chosen = np.isin(self._columns["class_id"], intervals["class_id"][at])
        return self._sizes(chosen & ~self._columns["always_live"], ipu, tile)

    def _sizes(self, chosen: np.ndarray, ipu: int | None, tile: int | None) -> list[Variable]:
        columns = self._columns
        if ipu is not None:
            chosen = chosen & (columns["ipu"] == ipu)
        if tile is not None:
            chosen = chosen & (columns["tile_from"] <= tile) & (tile < columns["tile_to"])
        rows = np.flatnonzero(chosen)
        size = columns["bytes"][rows]
        if tile is not None:  # a row's bytes are spread evenly over its tiles
            size = size // (columns["tile_to"][rows] - columns["tile_from"][rows])
        # A variable may have several rows, one for each range of tiles.
        ids, first_rows, place = np.unique(columns["var_id"][rows], return_index=True, return_inverse=True)
        total = np.zeros(len(ids), dtype=np.int64)
        np.add.at(total, place.reshape(-1), size)
        names = columns["name"][rows][first_rows]
        return [Variable(str(names[n]), int(total[n])) for n in np.argsort(-total, kind="stable").tolist()]


class Compilation(ReportPart):
    """The compiled program."""

    ABSENT: ClassVar = {
        "loweredVariables": "report.trace.table('variables') has the tiles of each variable",
        **dict.fromkeys(("ipus", "tiles"), "the trace says nothing about memory: its table tile_memory is empty"),
    }

    def __init__(self, trace: Trace, programs: Programs) -> None:
        self._trace = trace
        self._programs = programs
        self.target = Target(trace)

    @property
    def programs(self) -> list[Program]:
        """Every program, including those within others."""
        return self._programs.all

    @cached_property
    def graph(self) -> GraphFacts:
        """Counts of the graph's parts."""
        return GraphFacts(sum(program.type.name == "OnTileExecute" for program in self.programs))

    @property
    def computeSets(self) -> list[ComputeSet]:
        """The compute set of each program of type OnTileExecute."""
        return [program.computeset for program in self.programs if program.type.name == "OnTileExecute"]

    @cached_property
    def ipus(self) -> list[CompiledIpu]:
        """The IPUs of one replica; an ``AttributeError`` for a trace without memory."""
        memory, tiles = self._trace.columns("tile_memory"), self.target.tilesPerIpu
        if not len(memory["ipu"]):
            raise AttributeError(
                "Compilation.tiles: the trace says nothing about memory (its table tile_memory is empty)"
            )
        # An IPU without a row in the table is still one of the replica.
        count = max(int(memory["ipu"].max()) + 1, self.target.ipusPerReplica)
        bytes_by_tile: list[dict[str, int]] = [{} for _ in range(count * tiles)]
        places = memory["ipu"].astype(np.int64) * tiles + memory["tile"]
        for place, category, size in zip(places.tolist(), memory["category"], memory["bytes"].tolist(), strict=True):
            bytes_by_tile[place][category] = bytes_by_tile[place].get(category, 0) + size
        all_tiles = [Tile(TileMemory(by_name)) for by_name in bytes_by_tile]
        return [
            CompiledIpu(all_tiles[first_tile : first_tile + tiles]) for first_tile in range(0, len(all_tiles), tiles)
        ]

    @cached_property
    def tiles(self) -> Sequence[Tile]:
        """All tiles of one replica, IPU after IPU."""
        return [tile for ipu in self.ipus for tile in ipu.tiles]

    @cached_property
    def _variables(self) -> Variables:
        return Variables(self._trace)

    @cached_property
    def livenessProgramSteps(self) -> list[LivenessStep]:
        """Program steps of one run, in order."""
        return Liveness(self._trace, self._variables).steps()

    @cached_property
    def alwaysLiveVariables(self) -> list[Variable]:
        """Variables that are live at every step, the largest first."""
        return self._variables.always()

    def alwaysLiveVariablesForTile(self, tile: int) -> list[Variable]:
        """Those of one tile, counted over the IPUs of a replica."""
        return self._variables.always(*self._variables.place(tile))
