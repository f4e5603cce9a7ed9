"""The TensorFlow front end: what TensorFlow's port for the IPU adds to TensorFlow.

TensorFlow itself is the installed one: it traces the program's functions into graphs.

* :mod:`.importer` turns such a graph into ops of the IR; :mod:`.programs` (queues, sessions, runs) and
  :mod:`.pipelining` (stages, gradients, accumulation) make programs of them.
* :mod:`.keras` is Keras on the IPU.
* :mod:`.facade` is what programs call. Upstream's modules name it: :mod:`.python.ipu` stands beside the installed
  package as ``tensorflow.python.ipu`` (:mod:`ipuperf.runtime.install`), :mod:`.addons` for ``ipu_tensorflow_addons``.
"""
