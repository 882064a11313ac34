"""Chrome traces of torch.profiler (Kineto): what reading and recording share. It does not know recordings."""
