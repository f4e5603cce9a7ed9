"""``import horovod`` where Horovod is not installed: the collectives between host processes, of which there is one.

PopTorch applications pass metrics and seeds between the instances that ``poprun`` launches with Horovod. Here one
process stands for all instances (:mod:`ipuperf.popdist`), so that a collective over processes is one over a single
process. An installed Horovod is found first. Names: Horovod 0.28 (PyPI).
"""
