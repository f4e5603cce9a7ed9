"""The TensorFlow front end: what TensorFlow's port for the IPU adds to TensorFlow.

TensorFlow itself is the installed one: it traces the program's functions into graphs, which :mod:`.graph` imports.
:mod:`.python.ipu` stands beside it as ``tensorflow.python.ipu`` (:mod:`ipuperf.runtime.install`), :mod:`.keras` is
Keras on the IPU.
"""
