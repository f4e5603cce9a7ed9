"""``import horovod`` where Horovod is not installed: collectives between host processes, of which there is only one.

PopTorch applications use Horovod to pass metrics and seeds between the instances that ``poprun`` launches. Here one
process stands for all instances (:mod:`ipuperf.popdist`), so a collective covers a single process. An installed Horovod
takes precedence. Names: Horovod 0.28 (PyPI).
"""
