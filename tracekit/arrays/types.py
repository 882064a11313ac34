"""Types of NumPy arrays, by what they hold."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: Times, counts and ids.
Ints: TypeAlias = NDArray[np.signedinteger[Any]]
#: Positions in a table, of which -1 is none; 32 bits wide where many are kept: a report has fewer than 2^31 rows.
Rows: TypeAlias = NDArray[np.signedinteger[Any]]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]
Bytes: TypeAlias = NDArray[np.uint8]
#: A table by the names of its columns, without pandas.
Columns: TypeAlias = dict[str, NDArray[Any]]
