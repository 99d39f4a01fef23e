"""Artificial crowds: many small models trained as one (Lalor 2020, section 5.2.4)."""

from __future__ import annotations

from psychlm.crowds.answers import logprobs, respond
from psychlm.crowds.chunks import Crowd, build
from psychlm.crowds.encode import (
    Encoded,
    Vocabulary,
    encode_images,
    encode_pairs,
    encode_texts,
    take,
)
from psychlm.crowds.members import Member, draw_members
from psychlm.crowds.networks import Network, forward, initial
from psychlm.crowds.training import Lesson, Scores, TrainedCrowd, train

__all__ = [
    "Crowd",
    "Encoded",
    "Lesson",
    "Member",
    "Network",
    "Scores",
    "TrainedCrowd",
    "Vocabulary",
    "build",
    "draw_members",
    "encode_images",
    "encode_pairs",
    "encode_texts",
    "forward",
    "initial",
    "logprobs",
    "respond",
    "take",
    "train",
]
