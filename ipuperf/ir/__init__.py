"""The intermediate representation: typed SSA graphs of ops, their order, their derivative and their text form.

This room knows neither NumPy kernels nor cycles; see ``docs/design.md``.
"""

from .autodiff import Connection, Derivative, GradientBuilder, differentiate, expose, gradient_name
from .builder import Builder, Operand, is_host_data
from .context import CONTEXT, BuildContext
from .dtype import (
    ALL_DTYPES,
    BOOL,
    FLOAT8_143,
    FLOAT8_152,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
    converted,
    dtype_of,
)
from .errors import (
    AmbiguityError,
    ApplicationRuntimeError,
    CycleError,
    DTypeError,
    IrError,
    MixedTypesError,
    OptionError,
    ShapeError,
)
from .graph import Graph, Ir, below, calling, data_of, derived
from .joining import join
from .op import Op
from .operators import Operators
from .phase import Phase, phases_of
from .printing import format_schedule
from .pruning import elide, prune
from .recompute import Recomputation
from .replicas import Grouping, ReplicaGrouping, grouping_of
from .schedule import Precedence, changes, check_ambiguity, dependencies, roots, schedule
from .sources import Sources, sources_of
from .tensor import Constant, RemoteBuffer, Stream, Tensor, TensorSpec, Variable, describe

__all__ = [
    "ALL_DTYPES",
    "BOOL",
    "CONTEXT",
    "FLOAT8_143",
    "FLOAT8_152",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "AmbiguityError",
    "ApplicationRuntimeError",
    "BuildContext",
    "Builder",
    "Connection",
    "Constant",
    "CycleError",
    "DType",
    "DTypeError",
    "Derivative",
    "GradientBuilder",
    "Graph",
    "Grouping",
    "Ir",
    "IrError",
    "MixedTypesError",
    "Op",
    "Operand",
    "Operators",
    "OptionError",
    "Phase",
    "Precedence",
    "Recomputation",
    "RemoteBuffer",
    "ReplicaGrouping",
    "ShapeError",
    "Sources",
    "Stream",
    "Tensor",
    "TensorSpec",
    "Variable",
    "below",
    "calling",
    "changes",
    "check_ambiguity",
    "converted",
    "data_of",
    "dependencies",
    "derived",
    "describe",
    "differentiate",
    "dtype_of",
    "elide",
    "expose",
    "format_schedule",
    "gradient_name",
    "grouping_of",
    "is_host_data",
    "join",
    "phases_of",
    "prune",
    "roots",
    "schedule",
    "sources_of",
]
