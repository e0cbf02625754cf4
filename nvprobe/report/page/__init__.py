"""The report as one HTML file that works offline: see docs/page.md.

``render`` is all that others need. What the page shows is the analysis document (``content.py``)
and the events over time (``events.py``); how, is the JavaScript and the style sheet beside them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nvprobe.analysis.result import Analysis
from nvprobe.report.document import Document, document, plain
from nvprobe.report.page.assemble import assemble
from nvprobe.report.page.content import Content, content
from nvprobe.report.page.events import MOST_EVENTS, events
from nvprobe.trace import NO_ROW, Column


def render(
    analysis: Analysis, found: Document | None = None, *, most_events: int = MOST_EVENTS
) -> str:
    """The page of an analysis, as HTML that asks no network for anything.

    ``found`` is its document where that is known already. The timeline holds up to ``most_events``
    events one by one.
    """
    shown = content(plain(found or document(analysis)))
    tree, place = _tree(analysis, shown)
    made = events(analysis, place, _kernel_places(analysis, shown), most_events)
    about: dict[str, Any] = {
        "tree": tree,
        "rows": shown.rows,
        "sizes": shown.sizes,
        "left_out": [*(made.left_out if made else []), *shown.left_out],
        "timeline": made.about if made else None,
    }
    title = " · ".join(source["file"] for source in shown.document["sources"][:1])
    return assemble(title, shown.document, about, made.packed.text if made else "")


def _tree(analysis: Analysis, shown: Content) -> tuple[dict[str, list[Any]], Column]:
    """Name and parent of each of the page's ranges; and the page's row of each path, -1 for none.

    A range that was left out stands for the nearest one above it that was not.
    """
    paths, table = analysis.attribution.paths, analysis.ranges
    listed = np.argsort(table.order)
    listed = listed[(table.calls[listed] > 0) | (table.ops[listed] > 0)]
    kept = listed[shown.rows.get("ranges", slice(None))]
    place = np.full(len(paths.parent) + 1, NO_ROW)  # the last: no path
    place[kept] = np.arange(len(kept))
    near = paths.nearest(place[:-1] >= 0)
    place[:-1] = place[near]
    names = paths.names.take(paths.name[kept]).to_pylist()
    tree = {"name": [name[:500] for name in names], "parent": place[paths.parent[kept]].tolist()}
    return tree, place


def _kernel_places(analysis: Analysis, shown: Content) -> Column:
    """The page's number of each kernel, behind which stand the copies; the last entry: of none."""
    kernels, copies = len(analysis.kernels), len(analysis.copies)
    kept = np.asarray(shown.rows.get("kernels", range(kernels)), np.int64)
    place = np.full(kernels + copies + 1, NO_ROW)
    place[kept] = np.arange(len(kept))
    place[kernels:-1] = len(kept) + np.arange(copies)
    return place
