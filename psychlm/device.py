"""The device on which torch computes, by one rule for all that take ``device=``; seeds of torch.

``"auto"`` is the first CUDA GPU if there is one, else the CPU. Some functions keep small work on
the CPU even then, since copying and launching would take longer than computing: their documentation
says from which size on they take the GPU. What ran where is kept in :data:`used`, which reports
record.

On a CUDA GPU convolutions and recurrent layers compute in float32 too, not in TensorFloat-32, whose
10 bits of precision would make them differ from the CPU's in the third digit. Sums there run in no
fixed order (atomic additions), so that two runs may differ in their last digits. An MPS GPU has no
float64: work that needs it stays on the CPU.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from threadpoolctl import ThreadpoolController

Device: TypeAlias = "str | torch.device"
used: dict[str, list[str]] = {}  # where each part of the work ran: {"irt.fit": ["cpu"]}
# of those inside of one_thread
_lock = Lock()
_restore = ExitStack()
_inside: list[bool] = []


def torch_device(
    device: Device = "auto", part: str = "", *, worthwhile: bool = True, float64: bool = False
) -> torch.device:
    """Return a torch device that is present.

    Parameters
    ----------
    device : str or torch.device
        ``"auto"`` (the first CUDA GPU if there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``,
        ``"mps"``.
    part : str
        What is computed there, for :data:`used`; ``""`` records nothing.
    worthwhile : bool
        Whether the work is large enough for ``"auto"`` to take a GPU.
    float64 : bool
        Whether the work needs double precision: in place of an MPS GPU the CPU is returned, with a
        warning.

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

    if isinstance(device, str) and device == "auto":
        chosen = torch.device("cuda" if worthwhile and torch.cuda.is_available() else "cpu")
    else:
        try:
            chosen = torch.device(device)
            if chosen.type == "meta":
                raise RuntimeError("it holds no values")
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            said = f"device {str(device)!r} cannot be used: {str(error).splitlines()[0]}; use "
            raise ValueError(f"{said}device='cpu' or device='auto'") from error
    if float64 and chosen.type == "mps":
        warnings.warn(
            "an MPS GPU has no float64: this part is computed on the CPU", RuntimeWarning, 3
        )
        chosen = torch.device("cpu")
    if chosen.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    record_use(part, str(chosen))
    return chosen


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep small matrices on one thread, NumPy's and torch's: several wait for each other. The
    first to enter sets the threads of the process, the last to leave sets them back."""
    with _lock:
        if not _inside:
            if torch := sys.modules.get("torch"):  # which takes a second to import
                _restore.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
            libraries = _libraries("scipy.linalg" in sys.modules)
            _restore.enter_context(libraries.limit(limits=1, user_api="blas"))
        _inside.append(True)
    try:
        yield
    finally:
        with _lock:
            _inside.pop()
            if not _inside:
                _restore.close()


@cache
def _libraries(scipy_too: bool) -> ThreadpoolController:
    """Return the loaded libraries of linear algebra, whose search takes 10 ms."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def record_use(part: str, device: str) -> None:
    """Keep in :data:`used` where a part of the work runs; "" records nothing."""
    if part and device not in used.setdefault(part, []):
        used[part].append(device)


def used_gpus() -> str:
    """Return the names of the GPUs on which something ran, for reports; empty if nothing did."""
    gpus = sorted({name for names in used.values() for name in names} - {"cpu"})
    if not gpus:
        return ""
    import torch

    return ", ".join(
        f"{name}: {torch.cuda.get_device_name(name)}" if name.startswith("cuda") else name
        for name in gpus
    )


def float_type(device: torch.device) -> torch.dtype:
    """Return the most precise floating-point type of a device: float32 on MPS, else float64."""
    import torch

    return torch.float32 if device.type == "mps" else torch.float64


def free_bytes(device: torch.device, otherwise: int) -> int:
    """Return the free memory of a CUDA GPU; ``otherwise`` on other devices."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else otherwise


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the generator of the CPU and that of a CUDA GPU, no other, and restore them at the
    end."""
    import torch

    on_gpu = device is not None and device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
