"""What every way of fitting shares: the models' names, the device, and the warning."""

from __future__ import annotations

import torch

MODELS = {"1PL": "1PL", "RASCH": "Rasch", "2PL": "2PL", "3PL": "3PL"}
WORTH_A_GPU = 10_000_000  # answers


class IRTWarning(UserWarning):
    """A fit that needs a second look: what happened, to which items, and what to do."""


def pick_device(device: str, n_answers: int) -> torch.device:
    """Return the device; "auto" is a GPU where there is one and the answers are worth the transfer.

    Raises
    ------
    RuntimeError
        If a GPU is asked for and absent.
    """
    if device == "auto":
        return torch.device(
            "cuda" if torch.cuda.is_available() and n_answers > WORTH_A_GPU else "cpu"
        )
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RuntimeError(
            f'device={device!r} was asked for, and torch sees no GPU here; use device="cpu" or "auto"'
        )
    return torch.device(device)
