"""Checks of arguments that the schedules share. Every message says what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from .timetable import ScheduleError

Devices = Sequence["int | Sequence[int]"]
"""Per stage one IPU, or a list of IPUs for a concurrent stage (TensorFlow's ``device_mapping``)."""


def check_counts(name: str, stages: int, micro_batches: int, noun: str = "stages") -> None:
    """Raise unless both counts are integers of at least 1; ``noun`` names the first one in messages."""
    for label, value in ((noun, stages), ("micro-batches", micro_batches)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ScheduleError(f"{name}: the number of {label} has to be an integer of at least 1, not {value!r}")
    if stages < 1 or micro_batches < 1:
        raise ScheduleError(f"{name}: {stages} {noun} and {micro_batches} micro-batches; both have to be at least 1")


def check_multiple(name: str, stages: int, micro_batches: int, by: int) -> None:
    """Raise unless ``micro_batches`` is a multiple of ``by`` (as TensorFlow's Grouped and Interleaved require)."""
    if micro_batches % by:
        # 0 is not allowed, so small numbers have one nearest multiple only.
        below = micro_batches - micro_batches % by
        nearest = f"{below} or {below + by}" if below else f"{by}"
        raise ScheduleError(
            f"{name} with {stages} stages: the number of micro-batches (gradient accumulation count) must be a "
            f"multiple of {by}, but it is {micro_batches}; the nearest allowed: {nearest}"
        )


def check_apart(name: str, groups: Sequence[tuple[int, ...]], instead: str) -> None:
    """Raise if an IPU has two stages; ``instead`` names a schedule that allows it."""
    used = [ipu for group in groups for ipu in group]
    if len(set(used)) != len(used):
        raise ScheduleError(
            f"{name}: training with stages on IPUs {[list(group) for group in groups]} puts several stages on one IPU; "
            f"allowed: every stage on IPUs of its own (or use {instead})"
        )


def check_at_least(name: str, stages: int, micro_batches: int, least: int, formula: str, option: str) -> None:
    """Raise unless ``micro_batches`` is at least ``least``; ``formula`` gives the reason, ``option`` is its name."""
    if micro_batches < least:
        raise ScheduleError(
            f"{name} with {stages} stages: {option} has to be at least {least} ({formula}), but it is {micro_batches}"
        )


def check_devices(name: str, stages: int, devices: Devices | None, concurrent: bool) -> tuple[tuple[int, ...], ...]:
    """The IPUs of each stage, from a device mapping; ``None`` means stage ``i`` on IPU ``i``.

    Raises:
        ScheduleError: the length is wrong; an IPU is not an integer of at least 0 or occurs twice in one stage; or a
            stage has several IPUs where the family has no concurrent stages.
    """
    if devices is None:
        return tuple((stage,) for stage in range(stages))
    if len(devices) != stages:
        raise ScheduleError(f"{name}: {len(devices)} entries in devices for {stages} stages; one for each is needed")
    result = []
    for stage, entry in enumerate(devices):
        group = (entry,) if isinstance(entry, int) else tuple(entry)
        if any(isinstance(ipu, bool) or not isinstance(ipu, int) or ipu < 0 for ipu in group) or not group:
            raise ScheduleError(f"{name}: stage {stage} on devices {entry!r}; IPU numbers from 0 are allowed")
        if len(set(group)) != len(group):
            raise ScheduleError(f"{name}: concurrent stage {stage} names an IPU twice: {entry!r}; use distinct IPUs")
        if len(group) > 1 and not concurrent:
            raise ScheduleError(f"{name}: stage {stage} on devices {entry!r}; here a stage runs on exactly one IPU")
        result.append(group)
    return tuple(result)
