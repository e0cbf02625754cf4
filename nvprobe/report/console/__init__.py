"""The report at a terminal: `terminal` prints it, the other modules are its parts."""
