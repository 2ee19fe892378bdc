"""Explorers: pictures with controls. One module per lesson; each of its functions returns an `Explorer`."""

from transformer_lib.explorers.base import Explorer, HtmlExplorer, clip_text
from transformer_lib.explorers.drawing import Drawing

__all__ = ["Drawing", "Explorer", "HtmlExplorer", "clip_text"]
