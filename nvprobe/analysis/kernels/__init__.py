"""What kernels are and how well they use the GPU: classes, occupancy, counters, arithmetic."""
