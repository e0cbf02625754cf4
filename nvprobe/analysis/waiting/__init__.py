"""Why the GPU waits: idle time, the calls that synchronize, what the host does meanwhile."""
