"""Artificial crowds: many small models trained as one (Lalor 2020, section 5.2.4)."""

from __future__ import annotations

from psychlm.crowds.features import (
    item_features,
    pair_features,
    project,
    recompute,
    task_texts,
    text_features,
)
from psychlm.crowds.networks import Encoded, Network, encode_images, encode_texts, initial_weights
from psychlm.crowds.sampling import Member, draw_members
from psychlm.crowds.store import Crowd, train_crowd
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
    "item_features",
    "pair_features",
    "predict_logits",
    "project",
    "recompute",
    "task_texts",
    "text_features",
    "train",
    "train_crowd",
]
