"""DataLoader and accessor: sizes, order and content against PyTorch's own loader."""

import gc
import itertools
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.data import rebatch  # noqa: E402

Async, Sync, Rebatched = (
    poptorch.DataLoaderMode.Async,
    poptorch.DataLoaderMode.Sync,
    poptorch.DataLoaderMode.AsyncRebatched,
)


def dataset(length: int = 103):
    return torch.utils.data.TensorDataset(torch.arange(length * 2.0).reshape(length, 2), torch.arange(length))


def options(iterations: int = 2, accumulation: int = 3) -> poptorch.Options:
    made = poptorch.Options().deviceIterations(iterations)
    made.Training.gradientAccumulation(accumulation)
    return made


def labels_of(loader) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


def reader_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "poptorch-data"}


def test_combined_batch_size_is_that_of_one_call() -> None:
    made = options(2, 3).replicationFactor(4)
    loader = poptorch.DataLoader(made, dataset(), batch_size=1)
    assert loader.combinedBatchSize == 1 * 2 * 3 * 4
    assert len(loader) == 103 // 24
    assert loader.options is made
    grouped = options(2, 3).replicationFactor(4).inputReplicaGrouping(2, poptorch.CommGroupType.Orthogonal)
    assert poptorch.DataLoader(grouped, dataset(), batch_size=5).combinedBatchSize == 5 * 2 * 3 * 2


def test_options_are_frozen() -> None:
    made = options()
    poptorch.DataLoader(made, dataset())
    with pytest.raises(AttributeError, match="frozen"):
        made.deviceIterations(1)


@pytest.mark.parametrize("mode", [Sync, Async, Rebatched])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_mode_gives_what_pytorch_gives(mode, shuffle) -> None:
    reference = torch.utils.data.DataLoader(dataset(), batch_size=12, shuffle=shuffle, drop_last=True)
    pieces = {"rebatched_worker_size": 5} if mode is Rebatched else {}
    loader = poptorch.DataLoader(
        options(), dataset(), batch_size=2, shuffle=shuffle, mode=mode, num_workers=16, **pieces
    )
    torch.manual_seed(3)
    expected = [labels_of(reference), labels_of(reference)]
    state = torch.get_rng_state()
    torch.manual_seed(3)
    assert [labels_of(loader), labels_of(loader)] == expected
    assert torch.equal(torch.get_rng_state(), state)
    assert len(expected[0]) == len(loader) == 8


def test_a_generator_of_its_own() -> None:
    found = [
        labels_of(
            poptorch.DataLoader(
                options(), dataset(), 2, shuffle=True, mode=mode, generator=torch.Generator().manual_seed(9)
            )
        )
        for mode in (Sync, Async)
    ]
    assert found[0] == found[1]


def test_leftovers() -> None:
    for mode in (Sync, Rebatched):
        loader = poptorch.DataLoader(options(), dataset(), batch_size=2, drop_last=False, mode=mode)
        assert [len(batch) for batch in labels_of(loader)] == [12] * 8 + [7]
        assert len(loader) == 9
    with pytest.raises(AssertionError, match="give rebatched_size, or batches differ"):
        poptorch.DataLoader(options(), dataset(), batch_size=2, drop_last=False, mode=Async)


def test_leftovers_are_told(caplog) -> None:
    poptorch.DataLoader(options(), dataset(), batch_size=2, drop_last=False)
    assert "so the last batch has 7" in caplog.text


def test_worker_arguments_are_accepted() -> None:
    loader = poptorch.DataLoader(
        options(), dataset(), 2, num_workers=4, persistent_workers=True, prefetch_factor=4, pin_memory=True, timeout=9
    )
    assert len(labels_of(loader)) == 8
    assert loader.requested_workers == 4


def test_iterable_datasets() -> None:
    class Counting(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(30))

    for mode, expected in ((Sync, [12, 12]), (Async, [12, 12]), (Rebatched, [12, 12])):
        loader = poptorch.DataLoader(options(), Counting(), batch_size=2, mode=mode)
        assert [len(batch) for batch in loader] == expected
    loose = poptorch.DataLoader(options(), Counting(), batch_size=2, mode=Rebatched, drop_last=False)
    assert torch.cat(list(loose)).tolist() == list(range(30))


def test_data_sets_and_samplers_that_make_batches() -> None:
    loader = poptorch.DataLoader(options(), [torch.zeros(4, 2)] * 3, batch_size=None, mode=Async)
    assert loader.combinedBatchSize is None
    assert [batch.shape for batch in loader] == [(4, 2)] * 3
    sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(range(103)), 12, drop_last=True)
    for mode in (Sync, Async, Rebatched):
        sampled = poptorch.DataLoader(options(), dataset(), batch_sampler=sampler, mode=mode)
        assert (sampled.combinedBatchSize, len(sampled)) == (72, 1)
        assert labels_of(sampled) == [list(range(72))]
        rest = poptorch.DataLoader(options(), dataset(), batch_sampler=sampler, drop_last=False, mode=mode)
        assert len(rest) == 2
        assert labels_of(rest)[1] == list(range(72, 96))


def test_dictionaries() -> None:
    rows = [{"x": torch.tensor([float(n)]), "y": n} for n in range(24)]
    for mode in (Async, Rebatched):
        first = next(iter(poptorch.DataLoader(options(), rows, batch_size=2, mode=mode)))
        assert first["y"].tolist() == list(range(12))
        assert first["x"].shape == (12, 1)


def samples_of(loader: Any) -> list[int]:
    return [n for batch in labels_of(loader) for n in batch]


def part(process: int, count: int = 3, **arguments: Any) -> Any:
    made = options(2, 1).randomSeed(9)
    made.Distributed.configureProcessId(process, count)
    return poptorch.DataLoader(made, dataset(), batch_size=2, **arguments)


@pytest.mark.parametrize("mode", [Sync, Async, Rebatched])
def test_processes_share_a_data_set(mode: Any) -> None:
    parts = [part(process, mode=mode) for process in range(3)]
    assert [len(p) for p in parts] == [8, 8, 8]
    assert [n for p in parts for n in samples_of(p)] == list(range(96))
    rest = [part(process, drop_last=False) for process in range(3)]
    assert [n for p in rest for n in samples_of(p)] == list(range(103))
    assert [len(p) for p in rest] == [9, 9, 9]
    whole = part(1, auto_distributed_partitioning=False)
    assert len(labels_of(whole)) == 25


@pytest.mark.parametrize("mode", [Sync, Async])
def test_processes_draw_one_order_and_another_in_each_epoch(mode: Any) -> None:
    parts = [part(process, shuffle=True, mode=mode) for process in range(3)]
    torch.rand(3)
    epochs = [[samples_of(p) for p in parts] for _ in range(2)]
    for epoch in epochs:
        assert len({n for part in epoch for n in part}) == 96
    assert sorted(epochs[0][0]) != sorted(epochs[1][0])


def test_what_cannot_be_shared_out() -> None:
    made = options(2, 1)
    made.Distributed.configureProcessId(1, 2)
    with pytest.raises(AssertionError, match="randomSeed must be set"):
        poptorch.DataLoader(made, dataset(), shuffle=True)
    with pytest.raises(AssertionError, match="an iterable data set cannot be shared out"):
        poptorch.DataLoader(made, Counting())
    with pytest.raises(AssertionError, match="processId: 2 given, expected less than 2"):
        options().Distributed.configureProcessId(2, 2)
    with pytest.raises(poptorch.UnsupportedError, match="Distributed of 2 processes"):
        poptorch.inferenceModel(torch.nn.Linear(1, 1), made)


class Counting(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (torch.tensor([n]) for n in range(first, 20, step))


@pytest.mark.parametrize("mode", [Sync, Async])
def test_iterable_data_sets_have_the_workers_asked_for(mode: Any) -> None:
    loader = poptorch.DataLoader(options(1, 1), Counting(), batch_size=4, num_workers=2, mode=mode)
    wanted = torch.utils.data.DataLoader(Counting(), batch_size=4, num_workers=2, drop_last=True)
    assert [b.tolist() for b in loader] == [b.tolist() for b in wanted]


def test_breaking_off_and_beginning_anew() -> None:
    loader = poptorch.DataLoader(options(1, 1), dataset(), batch_size=1, mode=Async, async_options={"buffer_size": 2})
    for _, labels in loader:
        assert labels.tolist() == [0]
        break
    assert labels_of(loader)[:2] == [[0], [1]]
    next(iter(loader))
    loader.terminate()
    with pytest.raises(StopIteration):
        next(loader._accessor)


def test_no_thread_stays_behind() -> None:
    before = reader_threads()
    loader = poptorch.DataLoader(options(1, 1), dataset(), batch_size=1, mode=Async)
    next(iter(loader))
    (mine,) = reader_threads() - before
    del loader
    gc.collect()
    mine.join(timeout=10)
    assert not mine.is_alive()


def test_errors_of_the_data_set_reach_the_program() -> None:
    class Failing(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> int:
            if index > 14:
                raise KeyError(f"sample {index} is broken")
            return index

    for mode in (Sync, Async):
        iterator = iter(poptorch.DataLoader(options(), Failing(), batch_size=2, mode=mode))
        next(iterator)
        with pytest.raises(KeyError, match="sample 15 is broken"):
            next(iterator)


def test_a_data_set_that_cannot_begin_is_told_when_the_accessor_is_made() -> None:
    class Broken(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> int:
            raise KeyError("no file")

    with pytest.raises(poptorch.Error, match="worker thread failed to start: .* KeyError: 'no file'"):
        poptorch.AsynchronousDataAccessor(poptorch.DataLoader(options(), Broken(), batch_size=2))


def test_the_element_read_first_is_that_of_a_synchronous_loader_whatever_was_drawn_in_between() -> None:
    for drawn, own in itertools.product((0, 3), (False, True)):
        found = []
        for mode in (Sync, Async):
            torch.manual_seed(5)
            generator = torch.Generator().manual_seed(7) if own else None
            loader = poptorch.DataLoader(
                options(), dataset(), batch_size=2, shuffle=True, mode=mode, generator=generator
            )
            torch.rand(drawn)
            found.append((labels_of(loader), labels_of(loader), torch.rand(1).item()))
        assert found[0] == found[1]


def test_an_iterator_loses_no_element() -> None:
    accessor = poptorch.AsynchronousDataAccessor(iter([torch.tensor([n]) for n in range(4)]))
    torch.rand(1)
    assert [t.item() for t in accessor] == [0, 1, 2, 3]
    assert list(poptorch.AsynchronousDataAccessor([])) == []


def test_an_accessor_alone() -> None:
    inner = poptorch.DataLoader(options(), dataset(), batch_size=2)
    accessor = poptorch.AsynchronousDataAccessor(inner)
    assert len(accessor) == 8
    assert labels_of(accessor) == labels_of(inner)
    whole = poptorch.AsynchronousDataAccessor(inner, rebatched_size=24)
    assert len(whole) == 4
    assert [len(batch) for batch in labels_of(whole)] == [24] * 4
    with pytest.raises(poptorch.Error, match="reads ahead by itself"):
        poptorch.AsynchronousDataAccessor(poptorch.DataLoader(options(), dataset(), mode=Async))


def test_rebatch_keeps_structure_and_order() -> None:
    pieces = [(torch.arange(n, n + 3), torch.ones(3)) for n in (0, 3, 6)]
    cut = list(rebatch(pieces, 4, drop_last=False))
    assert [part[0].tolist() for part in cut] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert isinstance(cut[0], tuple)
    assert [t.tolist() for t in rebatch([torch.arange(10)], 4, drop_last=True)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(AssertionError, match="element 0 of a batch is a str"):
        list(rebatch([["text"]], 4, drop_last=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size: 0"),
        ({"mode": 1}, "poptorch.DataLoaderMode"),
        ({"num_workers": -1}, "num_workers: -1"),
        ({"mode": Rebatched, "rebatched_worker_size": 99}, "rebatched_worker_size is 99, more than the"),
        ({"mode": Rebatched, "batch_size": None}, "needs a batch_size"),
        ({"mode": Async, "async_options": {"rebatched_size": 4}}, "async_options has a rebatched_size"),
        ({"mode": Async, "async_options": {"buffer_size": 0}}, "buffer_size: 0"),
    ],
)
def test_wrong_arguments(arguments, message) -> None:
    with pytest.raises(AssertionError, match=message):
        poptorch.DataLoader(options(), dataset(), **arguments)
    with pytest.raises(AssertionError, match="expected poptorch.Options"):
        poptorch.DataLoader({}, dataset())


def test_the_tutorials_loaders(data_folder, monkeypatch) -> None:
    monkeypatch.setenv("IPUPERF_DATA", str(data_folder))
    from ipuperf.datasets.standin_mnist import MNIST
    from ipuperf.datasets.standin_transforms import Compose, Normalize, ToTensor

    images = MNIST("none", train=False, transform=Compose([ToTensor(), Normalize((0.1307,), (0.3081,))]))
    made = poptorch.Options().deviceIterations(100)
    loader = poptorch.DataLoader(made, images, 8, shuffle=True, drop_last=True, mode=Async, num_workers=16)
    assert len(loader) == 12
    data, labels = next(iter(loader))
    assert (data.shape, data.dtype, labels.shape) == ((800, 1, 28, 28), torch.float32, (800,))
