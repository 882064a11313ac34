"""The piecewise compiled backend: a model run the way it is served."""

from __future__ import annotations

from tracekit.capture.compile.backend import PiecewiseBackend
from tracekit.capture.compile.cache import ArtifactStore
from tracekit.capture.compile.config import CompileConfig
from tracekit.capture.compile.dispatch import CompiledModel, compile_model

__all__ = ["ArtifactStore", "CompileConfig", "CompiledModel", "PiecewiseBackend", "compile_model"]
