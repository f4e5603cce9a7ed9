"""The keys of a machine's TOML file, and reading one file into a checked `FileLayer`.

The files in ``data/`` form four rooms, told apart by the start of the file name: ``chip-``, ``ipu-machine-``, ``host-``
and ``machine-``. A chip file may hold only ``chip.*``, and so on. A machine file (and a user's file) names its parts in
``[parts]`` and may override any figure of them under the same dotted key.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.machine.errors import MachineError
from ipuperf.machine.figures import Absence, Figure, read_figure

ARCHITECTURES = ("ipu1", "ipu2", "ipu21")
WIRINGS = ("single", "ladder", "torus")

FIGURES: Mapping[str, str] = {
    "chip.tiles": "count",
    "chip.workers": "count",
    "chip.clock": "frequency",
    "chip.bytes_per_tile": "size",
    "chip.non_interleaved": "size",
    "chip.interleaved": "size",
    "chip.memory_element": "size",
    "chip.data_path": "size",
    "chip.exchange_rate": "rate",
    "chip.exchange_setup": "latency",
    "chip.sync": "latency",
    "chip.external_sync": "latency",
    "chip.launch": "latency",
    "chip.integer_division": "latency",
    "chip.memcpy_rate": "rate",
    "chip.amp_units_f16_f16": "count",
    "chip.amp_units_f16_f32": "count",
    "chip.amp_units_f32_f32": "count",
    "chip.amp_unit_weights": "size",
    "chip.weight_load_rate": "rate",
    "chip.alignment": "size",
    "chip.copy_setup": "latency",
    "chip.strided_copy": "cost",
    "chip.rearrangement.setup": "latency",
    "chip.rearrangement.atoms_of_8": "cost",
    "chip.rearrangement.atoms_of_4": "cost",
    "chip.rearrangement.atoms_of_2": "cost",
    "chip.code.stack": "size",
    "chip.code.control": "size",
    "chip.code.host_exchange": "size",
    "chip.code.instruction": "size",
    "chip.code.send": "size",
    "chip.code.exchange_instructions": "count",
    "chip.code.step_instructions": "count",
    "chip.code.packet": "size",
    "chip.code.packet_header": "size",
    "chip.code.vertex": "size",
    "chip.code.large_vertex": "size",
    "chip.code.vertex_state": "size",
    "chip.code.copy_state": "size",
    "ipu_machine.ipus": "count",
    "ipu_machine.links_per_ipu": "count",
    "ipu_machine.link_bandwidth": "bandwidth",
    "ipu_machine.link_efficiency": "ratio",
    "ipu_machine.link_latency": "latency",
    "ipu_machine.global_sync": "latency",
    "ipu_machine.gateway_bandwidth": "bandwidth",
    "ipu_machine.host_link_bandwidth": "bandwidth",
    "ipu_machine.ddr_bandwidth": "bandwidth",
    "ipu_machine.ddr_store_rate": "ratio",
    "ipu_machine.ddr_capacity": "size",
    "ipu_machine.remote_transfer": "time",
    "ipu_machine.remote_packet": "size",
    "ipu_machine.gw_links": "count",
    "ipu_machine.gw_link_bandwidth": "bandwidth",
    "ipu_machine.gw_link_latency": "latency",
    "ipu_machine.bundles.*.links": "count",
    "ipu_machine.cables.*.links": "count",
    "host.run_overhead": "time",
    "host.call_overhead": "time",
    "host.first_run": "time",
    "host.process_spread": "time",
    "host.sync_overhead": "time",
    "host.callback_overhead": "time",
    "host.answer_latency": "time",
    "host.pcie_bandwidth": "bandwidth",
    "host.stream_latency": "time",
    "system.ipus": "count",
    "system.ipu_machines": "count",
    "system.racks": "count",
}
"""Dotted key of every figure -> its dimension (`ipuperf.machine.figures.UNITS`)."""

STREAMING_MEMORY = (
    "ipu_machine.gateway_bandwidth",
    "ipu_machine.host_link_bandwidth",
    "ipu_machine.ddr_bandwidth",
    "ipu_machine.ddr_store_rate",
    "ipu_machine.ddr_capacity",
    "ipu_machine.remote_transfer",
    "ipu_machine.remote_packet",
)
"""The figures of the IPU-Gateway and its DDR: all given or all explicitly absent."""

TEXTS = (
    "name",
    "description",
    "extends",
    "parts.chip",
    "parts.ipu_machine",
    "parts.host",
    "chip.name",
    "chip.architecture",
    "ipu_machine.name",
    "host.name",
    "system.wiring",
)
PAIRS = ("ipu_machine.bundles.*.between", "ipu_machine.cables.*.between")

FAULTS = "faults"
"""The key of a machine file for what is wrong with the machine, a list of texts (`ipuperf.machine.faults`)."""

_CHOICES = {"chip.architecture": ARCHITECTURES, "system.wiring": WIRINGS}
_WILD = frozenset({"bundles", "cables"})
_SECTION = {"chip": "chip", "ipu-machine": "ipu_machine", "host": "host"}
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class FileLayer:
    """One checked file: its path as shown in messages, its texts, IPU pairs and figures by dotted key, its faults."""

    file: str
    texts: Mapping[str, str]
    pairs: Mapping[str, tuple[int, int]]
    figures: Mapping[str, Figure | Absence]
    faults: tuple[str, ...] | None = None


def canonical(dotted: str) -> str:
    """The schema's name of a dotted key, in which ``*`` stands for the free name of a bundle or a cable."""
    parts = dotted.split(".")
    if len(parts) >= 3 and parts[0] == "ipu_machine" and parts[1] in _WILD:
        parts[2] = "*"
    return ".".join(parts)


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # imported here, as programs that are only built load no machine
    else:
        import tomli as tomllib
    document: dict[str, Any] = tomllib.loads(text)
    return document


def read_layer(path: Path, room: str) -> FileLayer:
    """Read and check one TOML file of a ``room``: ``chip``, ``ipu-machine``, ``host`` or ``machine``.

    Raises `MachineError` naming the file, and the dotted key where there is one: unreadable file, invalid TOML, unknown
    key, or a value that breaks the schema. Missing keys only show once the layers are put together; the loader checks
    them.
    """
    file = str(path)
    try:
        data = _toml(path.read_text(encoding="utf-8-sig"))  # Windows' editors write a byte order mark
    except OSError as error:
        raise MachineError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise MachineError(f"{file}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # invalid TOML, a number of too many digits, tables nested too deep
        raise MachineError(f"{file}: not valid TOML: {error}") from error
    texts: dict[str, str] = {}
    pairs: dict[str, tuple[int, int]] = {}
    figures: dict[str, Figure | Absence] = {}
    faults: tuple[str, ...] | None = None
    allowed = allowed_keys(room)
    for dotted, value in _leaves(file, "", data, allowed):
        where, key = f"{file}: {dotted}", canonical(dotted)
        if key == FAULTS:
            faults = _lines(where, value)
        elif key in FIGURES:
            figures[dotted] = read_figure(where, value, FIGURES[key], key in STREAMING_MEMORY)
        elif key in PAIRS:
            pairs[dotted] = _pair(where, value)
        else:
            texts[dotted] = _word(where, value, _CHOICES.get(key))
    return FileLayer(file, texts, pairs, figures, faults)


def allowed_keys(room: str) -> frozenset[str]:
    """The canonical dotted keys a file of this room may hold."""
    keys = {*FIGURES, *TEXTS, *PAIRS, FAULTS}
    if room == "machine":
        return frozenset(keys)
    return frozenset({key for key in keys if key.startswith(f"{_SECTION[room]}.")} | {"extends", "description"})


def _leaves(file: str, prefix: str, table: dict[str, Any], allowed: frozenset[str]) -> list[tuple[str, Any]]:
    """Walk a TOML table down to the keys of the schema; raise on the first key that leads nowhere."""
    leaves: list[tuple[str, Any]] = []
    for key, value in table.items():
        if not _NAME.fullmatch(key):
            raise MachineError(f"{file}: {prefix}{key!r}: a key holds only letters, digits, '_' and '-'")
        dotted = prefix + key
        name = canonical(dotted)
        if name in allowed:
            leaves.append((dotted, value))
            continue
        # A table in between is not a key itself, but leads to keys.
        if not any(allowed_key.startswith(f"{name}.") for allowed_key in allowed):
            siblings = _siblings(canonical(prefix + "?"), allowed)
            raise MachineError(
                f"{file}: {dotted}: unknown key{did_you_mean(key, siblings)}, allowed here: {', '.join(siblings)}"
            )
        if not isinstance(value, dict):
            raise MachineError(f"{file}: {dotted}: {value!r} is not a table, write [{dotted}]")
        leaves += _leaves(file, f"{dotted}.", value, allowed)
    return leaves


def _siblings(name: str, allowed: frozenset[str]) -> list[str]:
    depth = name.count(".")
    prefix = name.rsplit(".", 1)[0] + "." if depth else ""
    return sorted({allowed_key.split(".")[depth] for allowed_key in allowed if allowed_key.startswith(prefix)})


def _pair(where: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(ipu) is int and ipu >= 0 for ipu in value):
        raise MachineError(f"{where}: {value!r} is not a pair of IPU numbers such as [0, 1]")
    return value[0], value[1]


def _lines(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise MachineError(f"{where}: {value!r} is not a list of texts such as ['ipu 3 at 0.95']")
    return tuple(value)


def _word(where: str, value: Any, choices: tuple[str, ...] | None) -> str:
    if not isinstance(value, str) or not value.strip():
        raise MachineError(f"{where}: {value!r} must be a text that is not empty")
    if choices and value not in choices:
        raise MachineError(f"{where}: {value!r} is not known{instead_of(value, choices)}")
    return value
