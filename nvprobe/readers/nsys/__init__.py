"""Exports and reports of nsys: from any version since 2020 to a Trace."""
