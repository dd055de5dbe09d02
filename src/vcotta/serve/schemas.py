"""The server's answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = [
    "BatchInfo",
    "Failure",
    "Health",
    "ImagePrediction",
    "InferenceResponse",
    "Live",
    "ModelMetadata",
    "ModelReady",
    "PredictResponse",
    "Problem",
    "Ready",
    "ResetResponse",
    "ServerMetadata",
    "State",
    "StepInfo",
    "StreamChange",
    "StreamCounters",
    "StreamInfo",
    "StreamList",
]

_STEP = "Number of the batch since the start or the latest reset; not known until a pinned stream's state was needed."
_CHANGES = "State version: counts updates and resets, survives restarts."


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str = Field(description="What was expected, what was sent, what to do.")


class Health(BaseModel):
    """The server is serving requests."""

    status: str = Field(description='Always "ok".')


class ResetResponse(BaseModel):
    """The state after a reset."""

    steps: int = Field(description="Batches since the reset, always 0.")
    changes: int = Field(description=_CHANGES)


class BatchInfo(BaseModel):
    """The batch in which a request was processed."""

    step: int | None = Field(description=_STEP)
    changes: int = Field(description=_CHANGES)
    images: int = Field(description="Images in the batch.")
    requests: int = Field(description="Requests pooled into the batch.")
    offset: int = Field(description="Position of this request's first image in the batch.")
    adapted: bool = Field(
        description="Whether an update of the model was taken: requested, possible for the method, and neither skipped "
        "nor dropped by the guard."
    )


class ImagePrediction(BaseModel):
    """The prediction for one image."""

    label: int = Field(description="Index of the most probable class.")
    name: str = Field(description="Name of that class.")
    probability: float = Field(description="Probability of that class.")
    entropy: float = Field(description="Entropy of the prediction, in nats.")
    probabilities: list[float] | None = Field(None, description="Probabilities of all classes, if requested.")
    predictive_entropy: float | None = Field(None, description="Entropy of the mean over posterior samples, in nats.")
    expected_entropy: float | None = Field(None, description="Mean entropy of the posterior samples, in nats.")
    mutual_information: float | None = Field(
        None, description="Model uncertainty in nats: predictive minus expected entropy."
    )
    alpha: float | None = Field(None, description="Weight of the source prior.")
    abstain: bool | None = Field(None, description="Whether to withhold this prediction at the requested coverage.")


class PredictResponse(BaseModel):
    """The predictions of a request, in the order of its images."""

    predictions: list[ImagePrediction]
    batch: BatchInfo


class StepInfo(BaseModel):
    """One batch of requests with adaptation."""

    change: int = Field(description="State version after this batch.")
    step: int = Field(description="Number of the batch since the latest reset.")
    at: float = Field(description="Seconds since the server started.")
    images: int = Field(description="Images in the batch.")
    requests: int = Field(description="Requests pooled into the batch.")
    seconds: float = Field(description="Seconds the adapter took.")
    entropy: float = Field(description="Mean entropy of the predictions, in nats.")
    alpha: float | None = Field(description="Mean weight of the source prior, if the method has one.")
    parameter_distance: float = Field(
        description="Distance of the parameters from their start, relative to the norm of the start."
    )
    effective_classes: float | None = Field(
        description="Number of classes that the batch seems to hold, if the method infers it."
    )
    class_diversity: float | None = Field(
        description="The same as a share of what a batch in random order would hold, 0 to 1."
    )
    batch_share: float | None = Field(
        description="Share of this and recent batches in BatchNorm's statistics, 0 to 1; the rest is the source's."
    )
    adapted: bool = Field(description="Whether an update of the model was taken.")
    skipped: bool = Field(description="Whether the update was skipped because it was not finite.")
    guard: Any = Field(
        description="Causes and action of the guard, if it acted; the action `note` is an event without consequences."
    )


class StreamCounters(BaseModel):
    """The counters of a stream."""

    stream: str = Field(description="Name of the stream.")
    steps: int | None = Field(
        description="Batches since the start or the latest reset; null until a state on the disk was needed."
    )
    changes: int = Field(description=_CHANGES)
    saved: int | None = Field(
        description="The state version that a killed server would continue from; null if states do not survive."
    )
    waiting: int = Field(description="Images that wait for the adapter.")
    images: int = Field(description="Images in requests with adaptation since the server started.")
    updates: int = Field(description="Updates of the model since the server started.")
    guarded: int = Field(description="Batches since the server started in which the guard acted.")
    in_memory: bool = Field(description="Whether the state is in memory, not only on the disk.")
    bytes: int = Field(description="Bytes of the state in memory, with the images since the latest checkpoint.")
    pinned: bool = Field(description="Whether the stream answers as the source network and does not adapt.")
    signs: list[str] = Field(
        description="By which signs the stream seems to do worse than the source, contradiction, entropy or collapse; "
        "outlier if the latest merge refused it."
    )
    contradiction: float | None = Field(
        description="Share of the recent images the source is sure of that the stream classifies otherwise."
    )


class StreamInfo(StreamCounters):
    """A stream in the list of all: its counters and some values of its latest batch."""

    entropy: float | None = Field(description="Mean entropy of the predictions, in nats.")
    parameter_distance: float | None = Field(
        description="Distance of the parameters from their start, relative to the norm of the start."
    )
    effective_classes: float | None = Field(description="Number of classes that the batch seems to hold.")


class StreamList(BaseModel):
    """The streams, and the memory of their states."""

    streams: list[StreamInfo]
    total: int = Field(description="Streams, also those not in the list.")
    most: int = Field(description="Streams that there may be.")
    in_memory: int = Field(description="Streams whose state is in memory.")
    memory: int = Field(description="Bytes of states that may be in memory.")
    held: int = Field(description="Bytes of states that are in memory.")
    source: int = Field(description="Bytes of the source network, which all streams share.")


class StreamChange(BaseModel):
    """A stream that was made, pinned, released or deleted."""

    stream: str = Field(description="Name of the stream.")
    changes: int = Field(description=_CHANGES)
    pinned: bool = Field(description="Whether the stream answers as the source network and does not adapt.")


class MergeResponse(BaseModel):
    """What a merge did, by names of streams."""

    merged: list[str] = Field(description="Streams that have the merged state now.")
    refused: list[str] = Field(description="Streams that learned something else than the others, and did not change.")
    left_out: list[str] = Field(
        description="Streams that are pinned, flagged or being deleted, have not adapted, or cannot be read."
    )
    seconds: float = Field(description="How long it took.")


class State(StreamCounters):
    """The served model, and the counters and latest batches of a stream."""

    version: str = Field(description="Version of vcotta.")
    network: str = Field(description="Name of the network.")
    method: str = Field(description="Name of the adaptation method.")
    settings: dict[str, Any] = Field(description="Settings of the method.")
    guard: dict[str, Any] | None = Field(description="Settings of the guard, if there is one.")
    bundle: str = Field(description="SHA-256 of the bundle.")
    class_names: list[str]
    channels: int = Field(description="Channels of an image.")
    size: int = Field(description="Height and width of an image, in pixels.")
    preprocess: str = Field(description="How image files are resized.")
    pool: int = Field(description="Small requests are pooled up to this many images.")
    limits: dict[str, float] = Field(description="Limits on requests.")
    token_needed: bool = Field(description="Whether requests that change the state need a token.")
    uptime: float = Field(description="Seconds since the server started.")
    skipped: int = Field(description="Skipped updates since the start or the latest reset.")
    low_diversity: bool = Field(description="Whether the latest batches seem to hold few classes.")
    history: list[StepInfo] = Field(
        description="The latest batches, oldest first: at most 600, or 60 of streams other than `default`."
    )


# The Open Inference Protocol.


class Failure(BaseModel):
    """Why a request of the Open Inference Protocol was refused."""

    error: str = Field(description="What was expected, what was sent, what to do.")


class ServerMetadata(BaseModel):
    """The server."""

    name: str
    version: str = Field(description="Version of vcotta.")
    extensions: list[str] = Field(description="Extensions of the protocol.")


class Live(BaseModel):
    """The server runs."""

    live: bool


class Ready(BaseModel):
    """The server serves requests."""

    ready: bool


class ModelReady(BaseModel):
    """The model serves requests."""

    name: str
    ready: bool


class Tensor(BaseModel):
    """A tensor."""

    name: str
    datatype: str
    shape: list[int] = Field(description="-1 for the number of images.")


class ModelMetadata(BaseModel):
    """The model and its tensors."""

    name: str
    platform: str = Field(description='Always "vcotta".')
    inputs: list[Tensor]
    outputs: list[Tensor]


class InferenceParameters(BaseModel):
    """The stream, and the batch in which a request was processed."""

    stream: str = Field(description="Name of the stream.")
    step: int | None = Field(None, description=_STEP)
    changes: int = Field(description=_CHANGES)
    adapted: bool = Field(description="Whether an update of the model was taken.")


class OutputTensor(Tensor):
    """A tensor of an answer."""

    data: list[float] | None = Field(None, description="Its numbers, if they are not behind the JSON.")
    parameters: dict[str, int] | None = Field(None, description="`binary_data_size`, if they are.")


class InferenceResponse(BaseModel):
    """The predictions of an inference request."""

    model_name: str
    id: str | None = Field(None, description="The `id` of the request.")
    parameters: InferenceParameters
    outputs: list[OutputTensor]
