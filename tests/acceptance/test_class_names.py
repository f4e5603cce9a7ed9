"""A public class name means one thing: what has two is written down here, and nothing may be added."""

import ast
from collections import Counter
from pathlib import Path

from syntax import tree

import ipuperf

#: Names that users know from PyTorch, TensorFlow, PopXL, PopTorch, libpva or examples_utils, and what the front ends'
#: classes are.
UPSTREAM = set(
    """Adam Attribute Block Call Channel Choice CommGroupType Constant CrossReplicaOptimizer DataLoader
    DeviceConnectionType Dropout Embedding Graph GroupNormalization IpuOptimizer Ir Liveness MeanReductionStrategy
    Module Options Phase PipelineStage PopnnDynamicGRU PopnnGRU PopnnLSTM Program ReductionType RemoteBuffer
    ReplicaGrouping Run Stream SyncPattern Tensor TensorLocation TensorLocationSettings TensorSpec Variable""".split()
)
#: A front end's or a room's own form of the class of the same name.
SPECIAL = {"Builder", "Op"}
#: Still ambiguous.
KNOWN = set("Compilation Executions Figures Ledger MatMul Newest Place Reduction Row Step Weights".split())


def test_no_other_class_name_is_there_twice() -> None:
    names: Counter[str] = Counter()
    for path in Path(ipuperf.__file__).parent.rglob("*.py"):
        body = tree(path).body
        names.update(node.name for node in body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    assert {name for name, count in names.items() if count > 1} == UPSTREAM | SPECIAL | KNOWN
