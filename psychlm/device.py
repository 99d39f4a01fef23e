"""The device on which torch computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def torch_device(device: str | torch.device = "auto") -> torch.device:
    """Return a torch device that is present.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` (the first GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``.

    Raises
    ------
    ValueError
        If torch knows no such device, or it is not on this machine.

    Examples
    --------
    >>> torch_device("cpu")
    device(type='cpu')
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "meta":
            raise RuntimeError("it holds no values")
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device {str(device)!r} cannot be used: {reason}; use device='cpu' or device='auto'"
        ) from error
    return chosen
