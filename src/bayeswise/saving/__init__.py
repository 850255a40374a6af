"""Saved models and checkpoints: safetensors and JSON, a checksum over every number, no pickle."""

from bayeswise.saving.checkpoints import CheckpointWarning, newest_checkpoint, write_checkpoint
from bayeswise.saving.directories import read_directory, write_directory
from bayeswise.saving.files import SavedModelError
from bayeswise.saving.trees import flatten, from_config, to_config, unflatten

__all__ = [
    "CheckpointWarning",
    "SavedModelError",
    "flatten",
    "from_config",
    "newest_checkpoint",
    "read_directory",
    "to_config",
    "unflatten",
    "write_checkpoint",
    "write_directory",
]
