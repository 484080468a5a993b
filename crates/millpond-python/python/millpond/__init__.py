"""Why a PyTorch program ran out of GPU memory, and what to change.

    import millpond

    with millpond.catch_oom("run.html"):
        train()

If memory runs out inside the block, the reason and the remedy are printed, the page ``run.html`` shows the details, and the exception goes on.
``python -m millpond run train.py`` does the same for a whole program. ``python -m millpond`` is the command ``millpond``.
"""

from ._oom import catch_oom

__all__ = ["catch_oom"]
