"""A stand-in device for torch, "card", in this process; its folder must be on Python's path.

Its numbers are the CPU's, and it refuses operations that mix its tensors with those of the host."""

import device_stand_in as stand_in  # before torch is used
import torch

__all__ = ["stand_in"]


def lstm_cell(of_input, of_state, cell, *biases):
    """The fused cell that torch takes on every GPU, in plain operations (gates i, f, g, o)."""
    i, f, g, o = sum((bias for bias in biases if bias is not None), of_input + of_state).chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell, cell.new_empty(0)


fused = torch.library.Library("aten", "IMPL")
fused.impl("_thnn_fused_lstm_cell", lstm_cell, "AutogradPrivateUse1")
