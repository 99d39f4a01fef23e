"""Compute on a stand-in device and on the CPU; print a JSON line for each capability.

The stand-in's numbers are the CPU's, and it refuses operations that mix its tensors with those of
the host: what runs here without an error does not mix devices, and should equal the CPU's results.
``test_device.py`` calls ``python stand_in_paths.py FOLDER``, the folder of ``device_stand_in.py``.

What a capability would cost on a GPU is counted: operations that are launched there (views are
none), the bytes that they read and write, and how often the host waits for the device's numbers."""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from unittest import mock

# isort: off
sys.path.insert(0, sys.argv[1])
from stand_in_device import stand_in  # before torch is used

import accelerate
import torch
from device_paths import answers, difference, paths
from torch.utils._pytree import tree_leaves

from psychlm import irt, lm
from psychlm.irt import starts


costs = {"launches": 0, "bytes": 0, "waits": 0}
# operations whose result, or its shape, the host reads
WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_unique2")


def bytes_of(values: object) -> int:
    tensors = [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]
    return sum(x.nelement() * x.element_size() for x in tensors)


def counted(run: Callable) -> Callable:
    """Return the stand-in's run, which counts what each operation costs on the device."""

    def run_and_count(func, args, kwargs):
        made = run(func, args, kwargs)
        inputs, outputs = tree_leaves((args, kwargs)), tree_leaves(made)
        takes_card, gives_card = (
            any(isinstance(x, stand_in.Card) for x in some) for some in (inputs, outputs)
        )
        if (takes_card or gives_card) and not func.is_view:
            name = func._schema.name.removeprefix("aten::")
            by_mask = any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in inputs[1:])
            costs["launches"] += 1
            costs["bytes"] += bytes_of(inputs) + bytes_of(outputs)
            costs["waits"] += name in WAITS or (name == "index" and by_mask) or not gives_card
        return made

    return run_and_count


stand_in.run = counted(stand_in.run)


def refuses_what_is_not_here(work: Callable) -> bool:
    """Return whether a device that torch does not know is an error that says what to do."""
    try:
        work(device="tpu")
    except ValueError as error:
        return "use device='cpu' or device='auto'" in str(error)
    return False


def mistakes() -> Iterator[tuple[str, Callable]]:
    """Yield two planted mistakes, which the stand-in must notice."""
    matrix, grid = answers(200, 12), starts.quadrature_grid

    def host_grid(device: str) -> irt.IRTFit:
        with mock.patch.object(starts, "quadrature_grid", lambda **_: grid(device="cpu")):
            return irt.fit(matrix, "2PL", device=device)

    yield "planted: host grid", host_grid
    yield "planted: numpy", lambda device: torch.ones(3, device=device).numpy()


def over_two_devices() -> float:
    """Return the largest difference in bits of a network whose last layer and output layer are on
    the stand-in and the rest on the CPU, as accelerate's ``device_map`` spreads it."""
    text = "The old man the boat. The horse raced past the barn fell."
    model = lm.load("default", "cpu")
    expected = lm.surprisal(text, model)["surprisal_bits"]
    card = torch.device("card")
    places = dict.fromkeys(("model.norm", "model.rotary_emb", "lm_head"), card)
    places |= {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": card}
    network = accelerate.dispatch_model(model.network, places, main_device="cpu")
    assert network.get_output_embeddings().weight.device.type == "card"
    spread = lm.surprisal(text, lm.wrap(network, model.tokenizer))["surprisal_bits"]
    return float((spread - expected).abs().max())


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, work in chain(paths(), mistakes()):
        refuses = not name.startswith("planted") and refuses_what_is_not_here(work)
        costs.update(dict.fromkeys(costs, 0))
        begin = time.process_time()
        try:
            row = {"difference": difference(work, "card"), "error": ""}
        except Exception as error:
            row = {"difference": None, "error": f"{type(error).__name__}: {error}"[:300]}
        row |= costs | {"refuses": refuses, "seconds": time.process_time() - begin}
        print(json.dumps({"path": name, **row}), flush=True)
    print(json.dumps({"path": "over two devices", "difference": over_two_devices()}))


if __name__ == "__main__":
    main()
