"""Artificial crowds: many small models trained as one (Lalor 2020, section 5.2.4)."""

from __future__ import annotations

from psychlm.crowds.networks import Encoded, Network, encode_images, encode_texts, initial_weights
from psychlm.crowds.sampling import Member, draw_members
from psychlm.crowds.store import Crowd, local_cluster, train_crowd
from psychlm.crowds.training import CrowdState, EpochPlan, TrainedCrowd, predict_logits, train

__all__ = [
    "Crowd",
    "CrowdState",
    "Encoded",
    "EpochPlan",
    "Member",
    "Network",
    "TrainedCrowd",
    "draw_members",
    "encode_images",
    "encode_texts",
    "initial_weights",
    "local_cluster",
    "predict_logits",
    "train",
    "train_crowd",
]
