"""One file a command: option parsing and nothing else."""
