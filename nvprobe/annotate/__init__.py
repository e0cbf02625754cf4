"""In-process instrumentation: NVTX ranges and a sidecar. Imports torch only when it is used."""
