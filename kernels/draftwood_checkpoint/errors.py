"""What can be wrong with a checkpoint.

CheckpointError (a ValueError)
├── MissingTensor
├── WrongShape
├── UnsupportedTensor
├── UnexpectedTensor
└── UnsupportedConfig
"""


class CheckpointError(ValueError):
    """The checkpoint on disk is not one that can be served."""


class MissingTensor(CheckpointError):
    """No file of the checkpoint holds a tensor that the model needs."""


class WrongShape(CheckpointError):
    """A tensor does not have the shape that config.json implies."""


class UnsupportedTensor(CheckpointError):
    """A tensor is stored in a way that is not implemented."""


class UnexpectedTensor(CheckpointError):
    """The checkpoint holds a tensor that the model would leave out of its arithmetic."""


class UnsupportedConfig(CheckpointError):
    """config.json lacks a field, or asks for something that is not implemented."""
