"""The version of ipuperf and of the library that computes its numbers, in a file that every room can import."""

__version__ = "0.1.0"


def arithmetic() -> str:
    """Name the libraries that compute values on this machine: NumPy and, if it tells, its BLAS library.

    No other library does, whatever else a program imports. Another version may sum in another order.
    """
    import numpy

    try:
        blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[index, unused-ignore]
        return f"NumPy {numpy.__version__} with {blas['name']} {blas['version']}"
    except (TypeError, KeyError):  # before NumPy 1.25
        return f"NumPy {numpy.__version__}"
