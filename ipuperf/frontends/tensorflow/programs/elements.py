"""Elements of the queues that a program reads, as its streams take them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.ir import Stream, converted
from ipuperf.numerics import StreamedInput

if TYPE_CHECKING:
    from .infeed import Feed


@dataclass
class Infeed:
    """A queue that the program reads.

    Attributes:
        owner: what reads it.
        streams: one per tensor of an element.
        count: how many elements per replica a run takes.
        copies: further sets of streams that carry the same elements to other readers (concurrent pipeline stages).
    """

    queue: Feed
    owner: object
    streams: list[Stream]
    count: int
    copies: list[list[Stream]] = field(default_factory=list)

    def streams_of(self, index: int) -> list[Stream]:
        """Streams that carry tensor ``index`` of the elements: the first, and those of further readers."""
        return [self.streams[index], *(copy[index] for copy in self.copies)]

    def steps(self, replicas: int, program: str) -> Iterator[list[np.ndarray]]:
        """The tensors of a run's elements, step by step: an array ``(R, *shape)`` each."""
        elements = self.queue.take(self.count * replicas)
        titles = [f"{program}: tensor {index} of {self.queue.name}" for index in range(len(self.streams))]

        def each() -> Iterator[list[np.ndarray]]:
            while step := list(itertools.islice(elements, replicas)):
                stacked = map(np.stack, zip(*step))
                yield [
                    converted(array, stream.dtype.numpy, title).reshape(replicas, *stream.shape)
                    for array, stream, title in zip(stacked, self.streams, titles)
                ]

        return each()


def inputs_of(
    infeeds: Sequence[Infeed], required: Collection[Stream], replicas: int, program: str
) -> tuple[dict[Stream, StreamedInput], list[Iterator[Any]]]:
    """Elements of the infeeds for one run, taken as loads read them: element ``t * R + r`` goes to step t of replica r.

    With the inputs come the elements of each infeed, which are to be used up.
    """
    inputs: dict[Stream, StreamedInput] = {}
    steps_of_feeds = []
    for feed in infeeds:
        steps = feed.steps(replicas, program)
        steps_of_feeds.append(steps)
        # A stream that nothing reads has gone from the program.
        readers = [
            (index, stream)
            for index in range(len(feed.streams))
            for stream in feed.streams_of(index)
            if stream in required
        ]
        for (_, stream), tensors in zip(readers, _parted(steps, [index for index, _ in readers])):
            inputs[stream] = StreamedInput(tensors, (feed.count, replicas, *stream.shape), stream.dtype.numpy)
    return inputs, steps_of_feeds


def _parted(steps: Iterator[list[np.ndarray]], indices: Sequence[int]) -> list[Iterator[np.ndarray]]:
    """An iterator over tensor ``index`` of each step for every one of ``indices``. They are read at different times;
    what only some have taken is kept (``itertools.tee`` keeps up to 57 more)."""
    waiting: list[deque[np.ndarray]] = [deque() for _ in indices]

    def each(mine: deque[np.ndarray]) -> Iterator[np.ndarray]:
        while True:
            if not mine:
                step = next(steps, None)
                if step is None:
                    return
                for index, queue in zip(indices, waiting):
                    queue.append(step[index])
                del step
            yield mine.popleft()

    return [each(queue) for queue in waiting]
