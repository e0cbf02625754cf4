"""From files to a Trace: the only room that knows foreign schemas."""
