"""Ops: values and gradients natively, marks in an exported program, errors of what is not here."""

import pytest

torch = pytest.importorskip("torch")

import ipuperf.poptorch as poptorch  # noqa: E402
from ipuperf.poptorch.blocks import record_blocks  # noqa: E402


@pytest.mark.parametrize(("reduction", "share"), [("sum", 1.0), ("mean", 0.25), ("none", 1.0)])
def test_identity_loss(reduction, share) -> None:
    x = torch.arange(4.0, requires_grad=True)
    loss = poptorch.identity_loss(x, reduction)
    expected = {"sum": x.sum(), "mean": x.mean(), "none": x}[reduction]
    assert torch.equal(loss, expected)
    loss.sum().backward()
    assert torch.equal(x.grad, torch.full((4,), share))
    with pytest.raises(AssertionError, match="identity_loss"):
        poptorch.identity_loss(x, "max")


def test_identities_pass_values_and_gradients() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    y = poptorch.nop(poptorch.set_available_memory(poptorch.recomputationCheckpoint(x), 0.3))
    assert torch.equal(x, y)
    (y * 3).sum().backward()
    assert torch.equal(x.grad, torch.full((2, 4), 3.0))


def test_print(capsys) -> None:
    x = torch.ones(2, requires_grad=True)
    poptorch.ipu_print_tensor(x, "here").sum().backward()
    printed = capsys.readouterr().out
    assert printed.splitlines() == ["here: (1., 1.)", "here_gradient: (1., 1.)"]


def test_checkpoint_structures() -> None:
    a, b = torch.ones(1), torch.zeros(1)
    assert isinstance(poptorch.recomputationCheckpoint(a, b), tuple)
    assert isinstance(poptorch.recomputationCheckpoint([a, b]), list)
    with pytest.raises(ValueError, match="All inputs must be tensors"):
        poptorch.recomputationCheckpoint(a, 3)


def test_serialised_product() -> None:
    a, b = torch.randn(4, 6), torch.randn(6, 8)
    modes = poptorch.MatMulSerializationMode
    for mode, factor in (
        (modes.InputChannels, 2),
        (modes.ReducingDim, 3),
        (modes.OutputChannels, 8),
        (modes.Disabled, 0),
    ):
        assert torch.equal(poptorch.serializedMatMul(a, b, mode, factor), a @ b)
    with pytest.raises(poptorch.Error, match="factor 4 does not divide the 6 of ReducingDim"):
        poptorch.serializedMatMul(a, b, modes.ReducingDim, 4)


def test_loops_and_conditions() -> None:
    start = [torch.tensor([1.0])]
    assert poptorch.for_loop(3, lambda x: x * 2, start)[0].item() == 8
    assert start[0].item() == 1
    with pytest.raises(poptorch.Error, match="they have to be equal"):
        poptorch.for_loop(1, lambda x: (x, x), start)
    with pytest.raises(ValueError, match="number 1 is a int"):
        poptorch.for_loop(1, lambda x: x, [start[0], 2])
    arguments = (lambda x: x + 1, start, lambda x: x - 1, start)
    assert poptorch.cond(torch.tensor(False), *arguments)[0].item() == 0
    for call in (lambda: poptorch.cond(torch.tensor(True), *arguments), lambda: poptorch.for_loop(1, abs, start)):
        with record_blocks(training=True), pytest.raises(poptorch.Error, match="only supported in inference"):
            call()


def test_a_dynamic_update_goes_on_from_the_begin() -> None:
    class Update(torch.nn.Module):
        def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
            return poptorch.dynamic_update(x, torch.zeros(1, 2), 1, start, 2)

    model = poptorch.inferenceModel(Update())
    x = torch.ones(1, 5)
    assert model(x, torch.tensor([3])).tolist() == [[1, 1, 1, 0, 0]]
    assert model(x, torch.tensor([4])).tolist() == [[0, 1, 1, 1, 0]]
    assert model(x, torch.tensor([5])).tolist() == [[0, 0, 1, 1, 1]]


def test_dynamic_indices() -> None:
    x = torch.arange(10)
    assert poptorch.dynamic_slice(x, 0, torch.tensor([2]), 5, 2).tolist() == [2, 4, 6]
    assert poptorch.dynamic_update(x, torch.zeros(2, dtype=x.dtype), 0, torch.tensor([7]), 2).tolist()[6:] == [
        6,
        0,
        0,
        9,
    ]
    with pytest.raises(poptorch.Error, match="Size must be an integer"):
        poptorch.dynamic_slice(x, 0, torch.tensor([2]), 1.5, 1)
    with pytest.raises(poptorch.Error, match="the slice is empty"):
        poptorch.dynamic_slice(x, 0, torch.tensor([2]), 0, 1)
    with pytest.raises(poptorch.Error, match="ends before its start"):
        poptorch.dynamic_update(x, x, 0, torch.tensor([2]), -1)
    with record_blocks(), pytest.raises(poptorch.Error, match="size 3 does not divide dimension 0, which has 10"):
        poptorch.dynamic_slice(x, 0, torch.tensor([2]), 3, 1)
    with pytest.raises(poptorch.Error, match=r"input has 1 dimensions, src 2"):
        poptorch.dynamic_update(x, x.reshape(1, 10), 0, torch.tensor([2]), 1)
    with pytest.raises(poptorch.Error, match="input is torch.int64, src torch.float32"):
        poptorch.dynamic_update(x, x[:1].float(), 0, torch.tensor([2]), 1)


def test_marks_stay_in_an_exported_program() -> None:
    class Model(torch.nn.Module):
        def forward(self, x):
            x = poptorch.set_available_memory(x @ x, 0.3)
            x = poptorch.serializedMatMul(x, x, poptorch.MatMulSerializationMode.ReducingDim, 2)
            return poptorch.identity_loss(poptorch.recomputationCheckpoint(poptorch.nop(x)), "mean")

    program = torch.export.export(Model(), (torch.ones(4, 4),), strict=False).run_decompositions({})
    names = [str(node.target) for node in program.graph.nodes if str(node.target).startswith("ipuperf.")]
    assert names == [
        f"ipuperf.{name}.default"
        for name in (
            "set_available_memory",
            "set_matmul_serialization",
            "nop",
            "recomputation_checkpoint",
            "identity_loss",
        )
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poptorch.custom_op([], "Cube", "custom.ops", 1, []), r"poptorch.custom_op \(Cube\) is not supported"),
        (lambda: poptorch.ctc_beam_search_decoder(1, 2), "ctc_beam_search_decoder must take a torch.tensor"),
        (
            lambda: poptorch.set_overlap_for_input(1, poptorch.OverlapMode.OverlapAccumulationLoop),
            "set_overlap_for_input must take a torch.tensor argument",
        ),
        (
            lambda: poptorch.ipu_print_tensor(torch.ones(1), float_format="hex"),
            "allowed: auto, fixed, scientific, none",
        ),
        (lambda: poptorch.nop(3), "nop must take a torch.tensor argument"),
    ],
)
def test_what_is_not_here_says_so(call, message) -> None:
    with pytest.raises(poptorch.Error, match=message):
        call()


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({}, ["product: (3., 6.)", "product_gradient: (5., 5.)"]),
        ({"print_gradient": False, "float_format": "fixed", "digits": 2}, ["product: (3.00, 6.00)"]),
        (
            {"float_format": "scientific", "digits": 1, "separator": "; ", "open_bracket": "<", "close_bracket": ">"},
            ["product: <3.0e+00; 6.0e+00>", "product_gradient: <5.0e+00; 5.0e+00>"],
        ),
    ],
    ids=["plain", "fixed", "scientific"],
)
def test_print_within_a_model(arguments, lines, capsys) -> None:
    class Printing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((2,), 3.0))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = poptorch.ipu_print_tensor(x * self.weight, "product", **arguments)
            return y, poptorch.identity_loss(y * 5, "sum")

    model = Printing()
    training = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.5))
    training(torch.tensor([1.0, 2.0]))
    printed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("product")]
    assert printed == lines
    x = torch.tensor([3.0, 6.0], requires_grad=True)
    (poptorch.ipu_print_tensor(x, "product", **arguments) * 5).sum().backward()
    assert capsys.readouterr().out.splitlines() == lines  # plain PyTorch prints the same
    assert torch.equal(model.weight.detach(), torch.tensor([0.5, -2.0]))


def test_fast_gather_last_dim() -> None:
    class Gather(torch.nn.Module):
        def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            example = torch.zeros_like(index).to(x.dtype)
            attributes = {"axis": -1}
            (out,) = poptorch.custom_op(
                [x, index], "FastGatherLastDim", "poptorch.custom_ops", 1, [example], attributes=attributes
            )
            return out

    x, index = torch.randn(2, 3, 5), torch.randint(0, 5, (2, 3, 4), dtype=torch.int32)
    found = poptorch.inferenceModel(Gather())(x, index)
    assert torch.equal(found, torch.gather(x, -1, index.long()))
