"""Student's t distribution."""

from __future__ import annotations

import functools

import numpy as np


@functools.cache
def t_quantile(free: float, share: float) -> float:
    """Student's t: the value that ``share`` of the distribution lies below.

    With ``t = sqrt(free) tan(a)`` the density is ``cos(a) ** (free - 1)``, which is integrated.
    """
    free = max(free, 1.0)
    angle = np.linspace(0, np.pi / 2, 200_001)
    height = np.cos(angle) ** (free - 1)
    below = np.concatenate(([0.0], np.cumsum((height[1:] + height[:-1]) / 2)))
    found = np.interp(share, 0.5 + below / below[-1] / 2, angle)
    return float(np.sqrt(free) * np.tan(found))
