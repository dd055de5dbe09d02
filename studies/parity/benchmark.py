"""Methods of the benchmark by RMT's authors, mariodoebler/test-time-adaptation, and of repositories built on it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from studies.checkouts import Loader, merge, read_config
from studies.parity.pairs import Pair, Step
from studies.parity.subject import CLASSES, FeaturesAndClasses, Subject, split_network

BENCHMARK = "mariodoebler/test-time-adaptation"
DATASET = "cifar10_c"
VIEWS = "views are ours"
Finish = Callable[[Any, Subject], None]


def replaced(subject: Subject) -> dict[str, dict[str, Any]]:
    """Return what takes the place of the benchmark's modules that need data files, other networks or torchvision."""
    loader = Loader(subject.source)
    return {
        "models.model": {
            "ResNetDomainNet126": type("ResNetDomainNet126", (nn.Module,), {}),
            "BaseModel": FeaturesAndClasses,
            "split_up_model": split_network,
        },
        "datasets.data_loading": {"get_source_loader": lambda **options: (None, loader)},
        "augmentations.transforms_cotta": {"get_tta_transforms": lambda *args, **options: subject.tape.view},
        "util.dataset": {f"prepare_{name}_test_data": None for name in ("imagenet", "cifar10", "cifar100")},
    }


def config_of(subject: Subject, folder: str, name: str, changes: Mapping[str, Any]) -> Any:
    """Return the repository's settings of a method for CIFAR10-C, with changes."""
    config = read_config(subject.root / folder, f"{DATASET}/{name}")
    merge(config, {"CKPT_DIR": str(subject.scratch), "TEST": {"BATCH_SIZE": 50}})
    merge(config, changes)
    return config


def make(
    subject: Subject,
    folder: str,
    module: str,
    name: str,
    config: str = "",
    changes: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
) -> Any:
    """Make an official adapter; ``finish`` then copies what is random at its start from ours."""
    settings = config_of(subject, folder, config or module, changes or {})
    method = getattr(importlib.import_module(f"methods.{module}"), name)
    adapter = method(settings, subject.copied(), CLASSES)
    if finish is not None:
        finish(adapter, subject)
    return adapter


def step_of(
    subject: Subject,
    folder: str,
    module: str,
    name: str,
    config: str = "",
    changes: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
    scale: float = 1.0,
) -> Step:
    """Return the step of an official adapter; its logits are multiplied by ``scale`` before they are normalised."""
    adapter = make(subject, folder, module, name, config, changes, finish)

    def step(images: Tensor) -> Tensor:
        with torch.no_grad():
            logits: Tensor = adapter(images)
        return (scale * logits.detach()).log_softmax(-1)

    return step


def share_projector(official: Any, subject: Subject) -> None:
    """Start the official projector from ours."""
    official.projector.load_state_dict(subject.adapter.networks["projector"].state_dict())


def give_nothing_to_loss(official: Any, subject: Subject) -> None:
    """Let RoTTA's loss be called as its file calls it, with an argument that it does not take."""
    loss = official.loss_calculation
    official.loss_calculation = lambda images: loss()


def clear_momentum_at_a_return(official: Any, subject: Subject) -> None:
    """Clear the momentum of SAR's inner optimiser when the weights return to the source's."""
    reset = official.reset

    def reset_all() -> None:
        reset()
        official.optimizer.base_optimizer.state.clear()

    official.reset = reset_all


def adacontrast(subject: Subject, *, labels_leave_with_keys: bool) -> Step:
    """Return AdaContrast's step, with our first queue and, if wanted, labels that leave the queue with their keys."""
    official = make(subject, FOLDER, "adacontrast", "AdaContrast")
    official.model.mem_feat.copy_(subject.adapter.memory["keys"].T)
    official.model.mem_labels.copy_(subject.adapter.memory["labels"])
    module = importlib.import_module("methods.adacontrast")
    if labels_leave_with_keys:
        before: dict[str, Tensor] = {}
        update, loss = official.model.update_memory, module.instance_loss

        def update_memory(*args: Any) -> None:
            before["labels"] = official.model.mem_labels.clone()
            update(*args)

        official.model.update_memory = update_memory
        module.instance_loss = lambda **given: loss(**given | {"mem_labels": before["labels"]})

    def step(images: Tensor) -> Tensor:
        weak = subject.tape.view(images)
        query, key = subject.tape.view(torch.cat([images, images])).chunk(2)
        logits: Tensor = official([images, weak, query, key])
        return logits.detach().log_softmax(-1)

    return step


def _of_benchmark(method: str, module: str, name: str, *changes: str, **options: Any) -> Pair:
    ours, variant = options.pop("ours", {}), options.pop("variant", "")
    config = options.get("config", module)
    build = partial(step_of, folder=FOLDER, module=module, name=name, **options)
    settings = f"{FOLDER}/cfgs/{DATASET}/{config}.yaml"
    return Pair(method, BENCHMARK, build, ours, FOLDER, replaced, settings, changes, variant)


FOLDER = "classification"
_NO_RETURN = {"SAR": {"RESET_CONSTANT_EM": 0.0}}
_PROJECTOR = "the projector starts from our weights"
PAIRS = (
    _of_benchmark("bn", "norm", "BNTest", config="norm_test"),
    _of_benchmark("tent", "tent", "Tent"),
    _of_benchmark("eata", "eata", "EATA", "the Fisher information is that of the same source batches"),
    _of_benchmark("sar", "sar", "SAR"),
    _of_benchmark(
        "sar",
        "sar",
        "SAR",
        "a return to the source clears the momentum",
        finish=clear_momentum_at_a_return,
        variant="momentum cleared",
    ),
    _of_benchmark(
        "sar",
        "sar",
        "SAR",
        "on both sides nothing returns",
        changes=_NO_RETURN,
        ours={"reset_below": 0.0},
        variant="never returns",
    ),
    _of_benchmark("deyo", "deyo", "DeYO", "shuffles are ours"),
    _of_benchmark(
        "rdumb",
        "eata",
        "EATA",
        "a restart after 5 batches instead of 1000",
        config="rdumb",
        changes={"MODEL": {"RESET_AFTER_NUM_UPDATES": 5}},
        ours={"period": 5},
    ),
    _of_benchmark("roid", "roid", "ROID", VIEWS, "its logits times the number of classes", scale=CLASSES),
    _of_benchmark("cmf", "cmf", "CMF", VIEWS, "its logits times the number of classes", scale=CLASSES),
    _of_benchmark("santa", "santa", "SANTA", VIEWS, _PROJECTOR, finish=share_projector),
    _of_benchmark(
        "rmt",
        "rmt",
        "RMT",
        VIEWS,
        _PROJECTOR,
        "without replay, a warm-up of 1000 images",
        "half the sum of its logits",
        changes={"RMT": {"LAMBDA_CE_SRC": 0.0, "NUM_SAMPLES_WARM_UP": 1000}, "TEST": {"BATCH_SIZE": 100}},
        finish=share_projector,
        scale=0.5,
        ours={"warm_up_images": 1000},
    ),
    _of_benchmark("cotta", "cotta", "CoTTA", "restored weights are ours", variant="without views"),
    _of_benchmark(
        "cotta",
        "cotta",
        "CoTTA",
        VIEWS,
        "restored weights are ours",
        changes={"COTTA": {"AP": 2.0}},
        ours={"threshold": 2.0},
        variant="views on every batch",
    ),
    _of_benchmark(
        "rotta",
        "rotta",
        "RoTTA",
        VIEWS,
        "its loss is called without the argument that it does not take",
        finish=give_nothing_to_loss,
    ),
    *(
        Pair(
            "adacontrast",
            BENCHMARK,
            partial(adacontrast, labels_leave_with_keys=mended),
            {},
            FOLDER,
            replaced,
            f"{FOLDER}/cfgs/{DATASET}/adacontrast.yaml",
            (VIEWS, "the first queue is ours", *(["a label leaves the queue with its key"] if mended else [])),
            "labels leave with keys" if mended else "",
        )
        for mended in (False, True)
    ),
)
