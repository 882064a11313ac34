"""Chrome traces of torch.profiler (Kineto): what reading and recording share.

``stream`` decodes the JSON piece by piece, ``columns`` makes columns of its events, ``arguments`` reads their names and
arguments. It does not know recordings: readers make those.
"""
