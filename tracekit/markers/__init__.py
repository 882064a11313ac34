"""The language of markers: what capture writes and :mod:`tracekit.trace.decoding` reads.

To add a dialect: define a :class:`~tracekit.markers.base.Dialect` in the file that its program belongs to, name it in
``DIALECTS`` or ``FRAMEWORKS`` (the first that understands a text wins), and add some of its texts with their markers to
``tests/markers``.
"""

from tracekit.markers.base import Dialect
from tracekit.markers.formatting import PIECES, STEPS
from tracekit.markers.frameworks import ATOM_STEPS, FRAMEWORKS, SGLANG_STEPS, VLLM_STEPS
from tracekit.markers.kernel_maps import KERNEL_MAPS
from tracekit.markers.layer_hooks import COMPACT, COMPILED_REGIONS, LAYER_DICTS
from tracekit.markers.torch_texts import ANNOTATED_MODULES, NUMBERED_MODULES, PROFILER_STEPS, PYPROF

DIALECTS: tuple[Dialect, ...] = (
    *(COMPILED_REGIONS, LAYER_DICTS, PYPROF, COMPACT),
    *(VLLM_STEPS, SGLANG_STEPS, ATOM_STEPS, PROFILER_STEPS, STEPS, PIECES, KERNEL_MAPS),
    *(NUMBERED_MODULES, ANNOTATED_MODULES),
    *FRAMEWORKS,
)
