"""The version of ipuperf, and of what computes its numbers, by itself so that every room can name it."""

__version__ = "0.1.0"


def arithmetic() -> str:
    """What computes values on this machine: NumPy and, where it tells, the library that multiplies matrices for it.

    Nothing else does, whatever else a program imports; another version may sum in another order.
    """
    import numpy

    try:
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index, unused-ignore]
        return f"NumPy {numpy.__version__} with {blas['name']} {blas['version']}"
    except (TypeError, KeyError):  # before NumPy 1.25
        return f"NumPy {numpy.__version__}"
