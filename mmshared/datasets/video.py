"""mmdet's video datasets. A sample is a video, so they are loaded the way stock does it."""

from __future__ import annotations

from mmdet.datasets import MOTChallengeDataset, YouTubeVISDataset
from mmdet.registry import DATASETS

from .annotations import SharedAnnotations


class _SharedVideos(SharedAnnotations):
    LOADED_WHOLE = 'its samples are videos, and a store has columns for images'


@DATASETS.register_module()
class SharedYouTubeVISDataset(_SharedVideos, YouTubeVISDataset):
    """``YouTubeVISDataset``."""


@DATASETS.register_module()
class SharedMOTChallengeDataset(_SharedVideos, MOTChallengeDataset):
    """``MOTChallengeDataset``."""
