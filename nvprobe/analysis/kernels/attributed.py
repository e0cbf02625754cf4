"""What a GPU op does, by its name and by the range that launched it.

What the range of a collective launches communicates, whatever it is called: a custom all-reduce, a
generated kernel. Matrix products, convolutions and attention stay what they are (fused operators
compute and communicate), and so does what an operator or a module inside that range launches. A
range that only its name makes a collective decides over kernels alone whose names say nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.analysis.kernels.classes import Activity, Family, OpClasses, classify_ops
from nvprobe.attribution.kinds import RangeRole, range_roles
from nvprobe.attribution.model import Attribution, Kind
from nvprobe.trace import Column, OpKind

_MATRIX = (Family.GEMM, Family.GEMV, Family.CONVOLUTION, Family.ATTENTION)
_NAMELESS = (Family.CUSTOM, Family.TRITON)
_COMPUTES = (Kind.OPERATOR, Kind.MODULE, Kind.GRAPH)


def classify(attribution: Attribution) -> OpClasses:
    """Judge every op of an attribution."""
    classes = classify_ops(attribution.trace)
    known, by_name = _collectives(attribution)
    owner = attribution.owner
    kernels = (attribution.trace.ops.kind == OpKind.KERNEL) & (owner >= 0)
    talks = kernels & np.append(known, False)[owner] & ~np.isin(classes.family, _MATRIX)
    talks |= kernels & np.append(by_name, False)[owner] & np.isin(classes.family, _NAMELESS)
    if not talks.any():
        return classes
    return dataclasses.replace(
        classes,
        activity=np.where(talks, np.int8(Activity.COMMUNICATION), classes.activity),
        family=np.where(talks, np.int8(Family.COMMUNICATION), classes.family),
    )


def _collectives(attribution: Attribution) -> tuple[Column, Column]:
    """Bool per path, twice: it lies in a collective, in a range that is called like one.

    What lies in neither has an operator or a module around it that is nearer.
    """
    paths = attribution.paths
    called = range_roles(attribution.names.names)[paths.name] == RangeRole.COLLECTIVE
    known = paths.kind == Kind.COLLECTIVE
    computes = np.isin(paths.kind, _COMPUTES) & ~called
    nearest = paths.nearest(known | called | computes)
    inside = np.append(np.where(known, 1, np.where(called, 2, 0)), 0)[nearest]
    return inside == 1, inside == 2
