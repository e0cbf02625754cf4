"""In-process instrumentation: NVTX ranges and a sidecar. Imports torch only when it is used.

* `emitter` writes ranges and marks to NVTX (or torch.profiler), `sidecar` what NVTX cannot carry;
* `ranges`, `modules`, `phases` and `syncs` say what to write;
* `instrument` switches all of it on, `startup` does so for a program that does not know nvprobe.
"""
