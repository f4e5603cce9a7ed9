"""The tables of a trace, as data.

A trace is *folded*: a **segment** is a run of steps on one IPU (the template, table ``steps``); an **instance** is one
execution of a segment on one IPU (table ``instances``). Steps inside a loop of their segment stand there once: table
``loops`` says how often and at what distance they come again. The slices a viewer draws are the join of the three.

Every table is a list of :class:`Column`: a name, a dtype, a unit and a meaning. The dtypes are

========  =====================================  =============================================
``i8``    ``numpy.int64``                        times (cycles of the tile clock), bytes, flops
``i4``    ``numpy.int32``                        identifiers, tiles, counts
``f8``    ``numpy.float64``                      means, rates, counter values
``bool``  ``numpy.bool_``
``str``   ``object`` array of Python ``str``
========  =====================================  =============================================

The model: ``docs/reference/traces.md`` 5; memory categories
carry the names of libpva.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 8
"""Version of the tables below. A file of another version is refused, never guessed at."""

KINDS: tuple[str, ...] = (
    "compute",
    "exchange",
    "sync",
    "sync_external",
    "link",
    "remote_load",
    "remote_store",
    "host_begin",
    "host_mid",
    "host_end",
    "host_run",
    "idle",
)
"""What a step spends its time on. ``exchange`` is internal, ``link`` is GlobalExchange over IPU-Links; ``host_begin``
and ``host_end`` wait for the host, ``host_mid`` transfers; ``host_run`` is the fixed host cost of a run."""

WAITING_KINDS: tuple[str, ...] = ("sync_external", "idle")
"""Kinds in which the IPU does nothing but wait for another IPU or for work."""

HOST_WAITING_KINDS: tuple[str, ...] = ("host_begin", "host_end", "host_run")
"""Kinds in which the IPU waits for the host."""

PHASES: tuple[str, ...] = ("fwd", "recompute", "bwd", "update", "io", "other")
"""What an op is for."""

LOCATIONS: tuple[str, ...] = ("tile", "remote", "host")
"""Where a variable lives: In-Processor-Memory, Streaming Memory, or host memory."""

TRANSFER_KINDS: tuple[str, ...] = (
    "p2p",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "stream",
    "remote_load",
    "remote_store",
)
"""What a transfer over a link is part of."""

MEMORY_CATEGORIES: tuple[str, ...] = (
    "variableAlwaysLive",
    "variableNotAlwaysLive",
    "constant",
    "vertexCode",
    "vertexInstanceState",
    "controlCode",
    "internalExchangeCode",
    "globalExchangeCode",
    "hostExchangeCode",
    "copyDescriptor",
    "globalExchangePacketHeader",
    "hostExchangePacketHeader",
    "stack",
    "gaps",
)
"""Categories of tile memory under their libpva names. ``variableNotAlwaysLive`` is the peak over program steps."""

NO_OP = -1
"""``op_id`` of a step, program, variable or transfer that belongs to no op; in other columns, too, "none"."""

BELOW = 2**62
"""What every whole number in a file is less than, so that sums of two of them are exact."""


@dataclass(frozen=True)
class Column:
    """One column: ``dtype`` is one of ``i8 i4 f8 bool str``; ``values``, where given, are the only strings allowed, and
    ``least`` is the least number (None: any) that a file may hold."""

    name: str
    dtype: str
    unit: str
    meaning: str
    values: tuple[str, ...] = ()
    least: int | None = 0


@dataclass(frozen=True)
class Table:
    """One table: its columns in order. A table that is not ``required`` may be left out and is then empty."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    required: bool = False

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)


def _table(name: str, meaning: str, *columns: Column, required: bool = False) -> Table:
    return Table(name, meaning, columns, required)


_LOOP = Column("loop", "i4", "id", "innermost loop of the segment the step stands in, -1 when none", least=NO_OP)
_OP_ID = Column("op_id", "i4", "id", "op this row comes from, -1 when none", least=NO_OP)
_IPU = Column("ipu", "i4", "index", "IPU within the system")
_SEGMENT = Column("segment", "i4", "id", "segment (template) the row belongs to")
_SEQ = Column("seq", "i4", "index", "order of the step within its segment")
_TILE_FROM = Column("tile_from", "i4", "tile", "first tile")
_TILE_TO = Column("tile_to", "i4", "tile", "one past the last tile")

_PROGRAM_TABLES: tuple[Table, ...] = (
    _table(
        "ops",
        "The ops of the program, one row each.",
        Column("op_id", "i4", "id", "identifier, unique"),
        Column("name", "str", "", "full name, scopes included"),
        Column("type", "str", "", "op type, such as MatMul"),
        Column("graph", "str", "", "graph the op stands in"),
        Column("phase", "str", "", "what the op is for", PHASES),
        Column("flops", "i8", "flop", "floating point operations of one execution on one replica"),
        Column("line", "str", "", "file:line of the user's program that made the op, empty when unknown"),
        Column("dtype", "str", "", "type the op computes with: of its first float operand or result, empty for none"),
        Column("module", "str", "", "path of the user's module it belongs to, the graph when none is known"),
    ),
    _table(
        "programs",
        "The static tree of control programs, with the names libpva uses for the types.",
        Column("program_id", "i4", "id", "identifier, unique"),
        Column("parent", "i4", "id", "program that contains this one, -1 for a root", least=NO_OP),
        Column("order", "i4", "index", "position among the children of the parent"),
        Column("type", "str", "", "Sequence, Repeat, Call, OnTileExecute, DoExchange, Sync, GlobalExchange, ..."),
        Column("name", "str", "", "name of the program step"),
        _OP_ID,
        Column("ipu", "i4", "index", "IPU that runs it, -1 when all do", least=NO_OP),
    ),
    _table(
        "steps",
        "Template: one row per executed leaf program of a segment; of a loop, the leaf programs of its first trip.",
        _SEGMENT,
        _SEQ,
        Column("program_id", "i4", "id", "leaf program, -1 when none", least=NO_OP),
        _OP_ID,
        Column("kind", "str", "", "what the time is spent on", KINDS),
        Column("rel_start", "i8", "cycles", "start relative to the start of the instance"),
        Column("dur", "i8", "cycles", "duration: that of the slowest tile"),
        Column("dur_mean", "f8", "cycles", "mean duration over all tiles of the IPU, idle tiles counting as zero"),
        Column("active_tiles", "i4", "tiles", "tiles that do something"),
        Column("argmax_tile", "i4", "tile", "slowest tile, -1 when it has no meaning", least=NO_OP),
        Column("bytes_in", "i8", "bytes", "bytes received by the tiles of the IPU"),
        Column("bytes_out", "i8", "bytes", "bytes sent by the tiles of the IPU"),
        Column("flops", "i8", "flop", "floating point operations done in this step"),
        Column("lane", "i4", "index", "0 compute tiles, 1 I/O tiles, 2 and up further overlapped activity"),
        _LOOP,
        required=True,
    ),
    _table(
        "loops",
        "Loops inside segments, outer ones before those they contain.",
        Column("loop", "i4", "id", "identifier, unique"),
        Column("parent", "i4", "id", "loop around this one, -1 when none", least=NO_OP),
        Column("count", "i8", "trips", "trips, at least 1"),
        Column("period", "i8", "cycles", "from the start of a trip to the start of the next one"),
    ),
    _table(
        "instances",
        "Executions of segments.",
        Column("instance", "i4", "id", "identifier, unique"),
        _SEGMENT,
        _IPU,
        Column("replica", "i4", "index", "replica the IPU belongs to"),
        Column("micro_batch", "i4", "index", "micro-batch worked on, -1 when none", least=NO_OP),
        Column("iteration", "i4", "index", "iteration of the loop around the segment, -1 when none", least=NO_OP),
        Column("start", "i8", "cycles", "absolute start"),
        Column("dur", "i8", "cycles", "duration, at least the extent of the segment"),
        Column("parent", "i4", "id", "run it belongs to"),
        required=True,
    ),
    _table(
        "tile_runs",
        "Per-tile durations of a step as runs of equal tiles (optional detail).",
        _SEGMENT,
        _SEQ,
        _TILE_FROM,
        _TILE_TO,
        Column("cycles", "i8", "cycles", "cycles of each tile of the run"),
        Column("bytes", "i8", "bytes", "bytes of each tile of the run"),
    ),
    _table(
        "plans",
        "How each matrix product and convolution is split over the tiles, and the cheapest other way.",
        _OP_ID,
        Column("product", "i4", "index", "which product of the op"),
        Column("rank", "i4", "index", "0 the plan that was taken, 1 the cheapest with another vertex or form"),
        Column("cycles", "i8", "cycles", "what the planner expects of one execution"),
        Column("tiles", "i4", "tiles", "tiles used"),
        Column("temp_bytes", "i8", "bytes", "temporary memory on a tile"),
        Column("vertex", "str", "", "vertex that multiplies"),
        Column("plan", "str", "", "form, splits and terms in one line"),
    ),
)

_MEMORY_TABLES: tuple[Table, ...] = (
    _table(
        "tile_memory",
        "Bytes per tile and category.",
        _IPU,
        Column("tile", "i4", "tile", "tile of the IPU"),
        Column("category", "str", "", "category under its libpva name", MEMORY_CATEGORIES),
        Column("bytes", "i8", "bytes", "bytes on this tile"),
    ),
    _table(
        "code",
        "What is always live, by op: code, vertex state, packet headers, stack and constants. "
        "For each tile and category the rows add up to tile_memory. What ops share counts for the first of them.",
        _OP_ID,
        _IPU,
        Column("category", "str", "", "category under its libpva name", MEMORY_CATEGORIES),
        _TILE_FROM,
        _TILE_TO,
        Column("bytes", "i8", "bytes", "bytes of the whole row, all its tiles together, the same on each"),
    ),
    _table(
        "variables",
        "Variables and where they live; several rows of one var_id where tiles hold different amounts.",
        Column("var_id", "i4", "id", "identifier of the variable"),
        Column("name", "str", "", "name"),
        _OP_ID,
        Column("category", "str", "", "what the variable is for"),
        Column("dtype", "str", "", "element type"),
        _IPU,
        _TILE_FROM,
        _TILE_TO,
        Column("bytes", "i8", "bytes", "bytes of the whole row, all its tiles together"),
        Column("always_live", "bool", "", "live at every program step"),
        Column("location", "str", "", "memory that holds it", LOCATIONS),
        Column("class_id", "i4", "id", "class of variables with the same live intervals"),
    ),
    _table(
        "live_intervals",
        "When the variables of a class are live, half open, in program steps of one run.",
        Column("class_id", "i4", "id", "class of variables"),
        Column("step_from", "i4", "step", "first step at which the class is live"),
        Column("step_to", "i4", "step", "one past the last such step"),
    ),
    _table(
        "liveness",
        "Live bytes at each program step of one run.",
        _IPU,
        Column("step", "i4", "step", "program step"),
        Column("program", "str", "", "name of the program of the step"),
        Column("always_live", "i8", "bytes", "always-live bytes of the whole IPU"),
        Column("not_always_live", "i8", "bytes", "not-always-live bytes of the whole IPU"),
        Column("max_tile", "i8", "bytes", "bytes on the fullest tile at this step"),
        Column("argmax_tile", "i4", "tile", "fullest tile"),
    ),
)

_SYSTEM_TABLES: tuple[Table, ...] = (
    _table(
        "links",
        "Links of the machine, one direction each.",
        Column("link_id", "i4", "id", "identifier, unique"),
        Column("name", "str", "", "hierarchical name"),
        Column("kind", "str", "", "ipu_link, gw_link, pcie, ddr, ..."),
        Column("source", "str", "", "name of the sender"),
        Column("destination", "str", "", "name of the receiver"),
        Column("bandwidth_bytes_per_s", "f8", "bytes/s", "peak rate"),
        Column("latency_cycles", "i8", "cycles", "latency"),
    ),
    _table(
        "transfers",
        "Transfers over links; a transfer that crosses several links has one row for each.",
        Column("transfer", "i4", "id", "identifier"),
        Column("link_id", "i4", "id", "link it uses"),
        Column("start", "i8", "cycles", "absolute start"),
        Column("dur", "i8", "cycles", "duration"),
        Column("bytes", "i8", "bytes", "bytes moved over this link"),
        _OP_ID,
        Column("kind", "str", "", "what the transfer is part of", TRANSFER_KINDS),
        Column("ipu", "i4", "index", "IPU that asked for it"),
    ),
    _table(
        "counters",
        "Values over time, each valid until the next row of the same track.",
        Column("track", "str", "", "name of the counter"),
        Column("t", "i8", "cycles", "absolute time", least=None),
        Column("value", "f8", "", "value from then on", least=None),
    ),
    _table(
        "host_events",
        "What the host does.",
        Column("label", "str", "", "what happens"),
        Column("channel", "str", "", "row it is shown on"),
        Column("start", "i8", "cycles", "absolute start"),
        Column("dur", "i8", "cycles", "duration"),
    ),
    _table(
        "runs",
        "Calls of the host that make the IPUs run (one session.run each).",
        Column("run", "i4", "id", "identifier, unique"),
        Column("name", "str", "", "name"),
        Column("start", "i8", "cycles", "absolute start"),
        Column("dur", "i8", "cycles", "duration"),
    ),
)

TABLES: dict[str, Table] = {table.name: table for table in (*_PROGRAM_TABLES, *_MEMORY_TABLES, *_SYSTEM_TABLES)}
"""All tables by name."""
