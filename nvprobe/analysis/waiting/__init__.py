"""Why the GPU waits: idle time, the calls that synchronise, what the host does meanwhile."""
