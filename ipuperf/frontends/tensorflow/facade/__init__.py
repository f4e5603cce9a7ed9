"""The content of ``tensorflow.python.ipu``, by subject; upstream's modules name it (:mod:`..python.ipu.modules`)."""
