"""Join several sources of one run, on one clock or by the order of kernels, into one Trace."""
