"""Arrays of NumPy or PyTorch: the estimation of item parameters computes with either.

It calls what both have under one name, by :func:`namespace`; the functions here are the rest.
PyTorch takes a second to import, and longer for a small array; it has threads and GPUs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

NEGLIGIBLE = 1e-18  # beside 1 in float32, and so that a product of two is no denormal number


def namespace(x: Any) -> Any:
    """Return the module that computes with an array: numpy or torch."""
    return np if isinstance(x, np.ndarray | np.generic) else sys.modules["torch"]


def device_of(x: Any) -> torch.device | None:
    """Return the device of a tensor; None for an array of NumPy."""
    return None if namespace(x) is np else x.device


def on_device(values: Any, device: torch.device | str | None) -> Any:
    """Return an array of NumPy as it is for device None, else as a tensor there."""
    if device is None:
        return values
    import torch

    writable = values if values.flags.writeable else values.copy()
    return torch.as_tensor(writable, device=device)


def host(x: Any) -> np.ndarray:
    """Return an array of NumPy."""
    return x if namespace(x) is np else x.cpu().numpy()


def zeros(like: Any, *shape: int) -> Any:
    """Return zeros of the type of ``like``."""
    return np.zeros(shape, like.dtype) if namespace(like) is np else like.new_zeros(shape)


def added(values: Any, index: Any, changes: Any) -> Any:
    """Return values (n,) with changes added at these numbers, which may repeat."""
    if namespace(values) is np:
        return values + np.bincount(index, changes, len(values))
    return values.index_add(0, index, changes)


def as_type(x: Any, name: str) -> Any:
    """Return an array of the type of this name, such as "float32"."""
    return x.astype(name, copy=False) if namespace(x) is np else x.to(getattr(namespace(x), name))


def single(x: Any) -> Any:
    """Return an array as float32, with 0 in place of what is smaller than NEGLIGIBLE.

    Numbers below 1e-38, and products as small, are denormal, which a CPU computes ten times slower.
    """
    return as_type(namespace(x).where(abs(x) < NEGLIGIBLE, 0.0, x), "float32")


def sigmoids(x: Any) -> tuple[Any, Any]:
    """Return 1 / (1 + exp(-x)) and 1 / (1 + exp(x)), exact where they are tiny."""
    if namespace(x) is not np:
        return x.sigmoid(), (-x).sigmoid()
    small = np.exp(-np.abs(x))
    larger = 1.0 / (1.0 + small)
    smaller = small * larger
    positive = x >= 0
    return np.where(positive, larger, smaller), np.where(positive, smaller, larger)


def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + exp(-x)), exact where it is tiny."""
    return sigmoids(x)[0] if namespace(x) is np else x.sigmoid()


def log_sigmoid(x: Any) -> Any:
    """Return log(1 / (1 + exp(-x)))."""
    if namespace(x) is not np:
        return namespace(x).nn.functional.logsigmoid(x)
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def log_softmax(x: Any, axis: int) -> Any:
    """Return log shares of exp(x) along an axis."""
    if namespace(x) is not np:
        return x.log_softmax(axis)
    x = x - x.max(axis, keepdims=True)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def solve(a: Any, b: Any) -> Any:
    """Solve many small systems (n, k, k) for right sides (n, k, m)."""
    if namespace(a) is np:
        return np.linalg.solve(a, b)
    return namespace(a).linalg.solve_ex(a, b).result


def positive_inverse(a: Any) -> Any:
    """Return the inverse of a positive definite matrix, or None if it is not that."""
    xp = namespace(a)
    if xp is np:
        try:
            root = np.linalg.inv(np.linalg.cholesky(a))
        except np.linalg.LinAlgError:
            return None
        return root.T @ root if np.isfinite(root).all() else None
    root, failed = xp.linalg.cholesky_ex(a)
    return None if failed else xp.cholesky_inverse(root)
