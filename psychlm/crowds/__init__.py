"""Artificial crowds: many small models trained as one (Lalor 2020, section 5.2.4)."""

from __future__ import annotations

from psychlm.crowds.networks import (
    Encoded,
    Inputs,
    Network,
    Vocabulary,
    encode_images,
    encode_texts,
    forward,
    initial_weights,
    last_states,
)
from psychlm.crowds.sampling import Member, draw_members
from psychlm.crowds.store import Crowd, local_cluster, models_that_fit, run_on_cluster, train_crowd
from psychlm.crowds.training import (
    CrowdState,
    EpochPlan,
    Loss,
    TrainedCrowd,
    predict_logits,
    train,
)

__all__ = [
    "Crowd",
    "CrowdState",
    "Encoded",
    "EpochPlan",
    "Inputs",
    "Loss",
    "Member",
    "Network",
    "TrainedCrowd",
    "Vocabulary",
    "draw_members",
    "encode_images",
    "encode_texts",
    "forward",
    "initial_weights",
    "last_states",
    "local_cluster",
    "models_that_fit",
    "predict_logits",
    "run_on_cluster",
    "train",
    "train_crowd",
]
