"""Where the published checkpoints lie that some tests compare with; they are not part of the project."""

import os
from importlib import metadata
from pathlib import Path

import pytest

from transformer_lib.pretrained.smollm2 import COMMAND, PACKAGE

MODELS = Path(os.environ.get("TRANSFORMER_SHARED", Path(__file__).resolve().parents[2] / "shared")) / "models"
STORIES = MODELS / "stories260K" / "stories260K.bin"
EXPECTED = MODELS / "expected"


def installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


needs_stories = pytest.mark.skipif(
    not STORIES.exists(),
    reason="stories260K is not at hand (its folder is named by TRANSFORMER_SHARED)",
)
needs_smollm2 = pytest.mark.skipif(
    not installed(PACKAGE), reason=f"SmolLM2 is not on this machine; get it with: {COMMAND}"
)
