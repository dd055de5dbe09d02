"""What the server answers, as the OpenAPI document tells it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

__all__ = ["BatchInfo", "Health", "Predictions", "Problem", "ResetDone", "State", "StepInfo"]


class Problem(BaseModel):
    """Why a request was not served."""

    detail: str = Field(description="What was expected, what came, what to do.")


class Health(BaseModel):
    """That the server lives."""

    status: str


class ResetDone(BaseModel):
    """The state after a reset."""

    steps: int = Field(description="Batches since the start: none.")
    changes: int = Field(description="How often the state has changed, this reset included.")


class BatchInfo(BaseModel):
    """The batch a request was part of."""

    step: int = Field(description="Number of the batch since the start or the latest reset.")
    changes: int = Field(description="How often the state has changed, resets and earlier lives included.")
    images: int = Field(description="Images in the batch.")
    requests: int = Field(description="Requests that were pooled into it.")
    offset: int = Field(description="Where this request's images are in it.")
    adapted: bool = Field(description="Whether the model adapted to it.")


class Prediction(BaseModel):
    """What the model says of one image."""

    label: int = Field(description="Number of the most probable class.")
    name: str = Field(description="Its name.")
    probability: float = Field(description="Its probability.")
    entropy: float = Field(description="Entropy of the prediction, in nats.")
    probabilities: list[float] | None = Field(None, description="Those of all classes, unless not wanted.")
    predictive_entropy: float | None = Field(None, description="Entropy of the mean over the posterior's samples.")
    expected_entropy: float | None = Field(None, description="Mean entropy of the posterior's samples.")
    mutual_information: float | None = Field(None, description="What the model does not know, in nats.")
    alpha: float | None = Field(None, description="Weight of the source prior.")
    abstain: bool | None = Field(None, description="Whether not to answer, at the coverage that was asked for.")


class Predictions(BaseModel):
    """The predictions of a request, in the order of its images."""

    predictions: list[Prediction]
    batch: BatchInfo


class StepInfo(BaseModel):
    """What one batch showed."""

    change: int
    step: int
    at: float = Field(description="Seconds since the server started.")
    images: int
    requests: int
    seconds: float = Field(description="How long the adapter took.")
    entropy: float = Field(description="Mean entropy of the predictions, in nats.")
    alpha: float | None = Field(description="Mean weight of the source prior, where the method has one.")
    drift: float = Field(description="Distance of the weights from their start, relative to their size.")
    skipped: bool = Field(description="Whether the update was dropped.")
    guard: Any = Field(description="What a guard did, if one stepped in.")


class State(BaseModel):
    """The model that is served, and how it is."""

    version: str
    network: str
    method: str
    settings: dict[str, Any]
    guard: dict[str, Any] | None = Field(description="The bounds of its guard, if it has one.")
    bundle: str = Field(description="SHA-256 of the bundle.")
    class_names: list[str]
    channels: int
    size: int
    preprocess: str
    pool: int = Field(description="Images up to which small requests are pooled.")
    limits: dict[str, float]
    token_needed: bool
    uptime: float = Field(description="Seconds since the server started.")
    steps: int
    skipped: int
    changes: int
    waiting: int = Field(description="Images that wait for the adapter.")
    images: int = Field(description="Images adapted to, since the server started.")
    guarded: int = Field(description="Batches in which a guard stepped in, since the server started.")
    history: list[StepInfo]
