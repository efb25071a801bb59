"""The same seed, the same sequences: in every process, whatever else is loaded there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from hypothesis.internal.conjecture.providers import HypothesisProvider

_CONSTANTS = "_maybe_draw_constant"


def same_everywhere() -> AbstractContextManager[object]:
    """Keep Hypothesis from mixing constants, those of whatever modules happen to be loaded, into what it draws.

    There is no setting for this. With a version of Hypothesis that does it in another way, a seed gives the same
    sequences only where the same modules are loaded, and all else holds.
    """
    if not hasattr(HypothesisProvider, _CONSTANTS):
        return nullcontext()
    return patch.object(HypothesisProvider, _CONSTANTS, lambda *args, **options: None)
