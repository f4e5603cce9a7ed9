"""The facts of a page read back, and what its scripts make of them."""

import base64
import json
import re
import zlib
from itertools import product
from typing import Any

import numpy as np

from ipuperf.trace import KINDS


def facts_of(page: str) -> dict[str, Any]:
    """The facts of a page, columns as lists."""
    (block,) = re.findall(r'<script type="application/octet-stream" id="facts">([^<]*)</script>', page)
    data = zlib.decompress(base64.b64decode(block))
    length = int.from_bytes(data[:4], "little")
    columns = (4 + length + 7) // 8 * 8

    def column(entry: dict[str, Any]) -> Any:
        if "$" not in entry:
            return entry
        kind, begin, count = entry["$"]
        values = np.frombuffer(data, np.dtype(kind).newbyteorder("<"), count, columns + begin)
        return values.astype(np.int64).tolist()

    facts: dict[str, Any] = json.loads(data[4 : 4 + length], object_hook=column)
    return facts


def offsets(loops: dict[str, list[int]], loop: int) -> list[int]:
    """When the trips of all loops around a row begin, after its first start."""
    trips = []
    while loop >= 0:
        count, period = loops["count"][loop], loops["period"][loop]
        trips.append([trip * period for trip in range(count)])
        loop = loops["parent"][loop]
    return [sum(later) for later in product(*trips)]


def executions(timeline: dict[str, Any], row: int) -> list[tuple[int, int]]:
    """The start and the segment of each execution of a row of the time line, in order."""
    return occurrences(timeline["courses"][timeline["rows"]["course"][row]], "segment")


def slices_of(line: dict[str, Any], row: int) -> list[tuple[int, int, str, str]]:
    """The slices of a row of the time line: start, dur, kind and op."""
    templates, slices = line["segments"], []
    for start, segment in executions(line, row):
        low, high = templates["first"][segment : segment + 2]
        for step, begin in zip(range(low, high), np.cumsum(templates["rel"][low:high]).tolist(), strict=True):
            if templates["lane"][step] != line["rows"]["lane"][row]:
                continue
            about = (templates["dur"][step], KINDS[templates["kind"][step]], line["ops"][templates["op"][step]])
            slices += [
                (start + begin + later, *about) for later in offsets(templates["loops"], templates["loop"][step])
            ]
    return sorted(slices)


def occurrences(course: dict[str, Any], *columns: str) -> list[tuple[int, ...]]:
    """The start and these columns of each occurrence of the rows of a course, sorted."""
    rows = zip(np.cumsum(course["start"]).tolist(), course["repeat"], *(course[name] for name in columns), strict=True)
    return sorted((start + later, *row) for start, loop, *row in rows for later in offsets(course["loops"], loop))
