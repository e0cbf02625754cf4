"""What a kind of change does to a model: one file a family.

Each function takes a sample and what the change is about, and gives an ``Edit``, which makes the
change at any of three levels. To add a kind: a function here, and a line in
``nvprobe.analysis.findings.replayed`` that says which finding it belongs to.
"""
