"""DataFrames whose texts come from a capture: printed, they cannot drive the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from nvprobe.report.cells import visible


class CaptureSeries(pd.Series):
    """A Series that shows control characters as escapes; its values are what was recorded."""

    @property
    def _constructor(self) -> Callable[..., CaptureSeries]:
        return CaptureSeries

    @property
    def _constructor_expanddim(self) -> Callable[..., CaptureFrame]:
        return CaptureFrame

    def to_string(self, *given: Any, **options: Any) -> Any:
        """As pandas, which `print` asks, too."""
        text = super().to_string(*given, **options)
        return visible(text) if isinstance(text, str) else text


class CaptureFrame(pd.DataFrame):
    """A DataFrame that shows control characters as escapes; its values are what was recorded."""

    @property
    def _constructor(self) -> Callable[..., CaptureFrame]:
        return CaptureFrame

    @property
    def _constructor_sliced(self) -> Callable[..., CaptureSeries]:
        return CaptureSeries

    def to_string(self, *given: Any, **options: Any) -> Any:
        """As pandas, which `print` asks, too."""
        text = super().to_string(*given, **options)
        return visible(text) if isinstance(text, str) else text

    def _repr_html_(self) -> str | None:
        """As pandas, which escapes HTML; nothing acts on who reads the page's source."""
        text = super()._repr_html_()  # type: ignore[misc]
        return visible(text) if isinstance(text, str) else text


class FindingsFrame(CaptureFrame):
    """The table of findings: whole, a notebook shows it as a list of what to try."""

    @property
    def _constructor(self) -> Callable[..., CaptureFrame]:
        return CaptureFrame

    def _repr_html_(self) -> str | None:
        """What, where, what it saves, what to try."""
        from nvprobe.report.notebook import findings

        return findings(
            [{str(key): value for key, value in row.items()} for row in self.to_dict("records")]
        )
