"""Run a program under nsys or torch.profiler, verify what was recorded, salvage what can be."""
