"""Models for serving."""

from ...refusals import refused

export_pipeline = refused("serving.export_pipeline", "there are no Poplar executables to export")
export_single_step = refused("serving.export_single_step", "there are no Poplar executables to export")
export_keras = refused("serving.export_keras", "there are no Poplar executables to export")

__all__ = ["export_keras", "export_pipeline", "export_single_step"]
