"""Methods in their authors' own repositories."""

from __future__ import annotations

import copy
import importlib
import math
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from studies.parity.benchmark import VIEWS, make, replaced
from studies.parity.pairs import Pair, Step
from studies.parity.subject import CLASSES, Subject
from studies.parity.undefined import undefined_names
from vcotta.bayes import WarmUpConfig, kl_divergence, sampling

LOG_CLASSES = math.log(CLASSES)
_LR = 1e-3
_MOMENTUM = {"lr": _LR, "optimizer": "momentum"}
_SGD = "SGD with momentum 0.9 and a step of 1e-3, margins for ten classes"
Call = Callable[[Any, Tensor], Tensor]


def adam(parameters: Any) -> torch.optim.Adam:
    """Return the optimiser of the authors' scripts for CIFAR10-C."""
    return torch.optim.Adam(parameters, lr=_LR, betas=(0.9, 0.999), weight_decay=0.0)


def momentum(parameters: Any) -> torch.optim.SGD:
    """Return the optimiser of the authors' scripts for ImageNet-C, with another step."""
    return torch.optim.SGD(parameters, lr=_LR, momentum=0.9)


def normalised(adapter: Any, call: Call = lambda adapter, images: adapter(images)) -> Step:
    """Return the step of an official adapter."""

    def step(images: Tensor) -> Tensor:
        return call(adapter, images).detach().log_softmax(-1)

    return step


def configured(subject: Subject, module: Any) -> tuple[nn.Module, list[Tensor]]:
    """Return a network and its trained parameters, chosen by the official module."""
    network = module.configure_model(subject.copied())
    return network, module.collect_params(network)[0]


def tent(subject: Subject) -> Step:
    module = importlib.import_module("tent")
    network, trained = configured(subject, module)
    return normalised(module.Tent(network, adam(trained)))


def eata(subject: Subject) -> Step:
    module = importlib.import_module("eata")
    network, trained = configured(subject, module)
    names = [name for name, tensor in network.named_parameters() if any(tensor is one for one in trained)]
    weights = dict(network.named_parameters())
    parts = subject.adapter.prepared["fisher"].split([weights[name].numel() for name in names])
    fishers = {
        name: [part.view_as(weights[name]), weights[name].detach().clone()]
        for name, part in zip(names, parts, strict=True)
    }
    margins = {"e_margin": 0.4 * LOG_CLASSES, "d_margin": 0.4}
    return normalised(module.EATA(network, momentum(trained), fishers, fisher_alpha=1.0, **margins))


def sar(subject: Subject, *, cleared: bool) -> Step:
    module = importlib.import_module("sar")
    network, trained = configured(subject, module)
    optimizer = importlib.import_module("sam").SAM(trained, torch.optim.SGD, lr=_LR, momentum=0.9)
    adapter = module.SAR(network, optimizer, margin_e0=0.4 * LOG_CLASSES)
    if cleared:
        adapt = module.forward_and_adapt_sar

        def forgetful(*given: Any) -> tuple[Tensor, float | None, bool]:
            outputs, mean, returns = adapt(*given)
            if returns:
                optimizer.base_optimizer.state.clear()
            return outputs, None if returns else mean, returns

        module.forward_and_adapt_sar = forgetful
    return normalised(adapter)


def deyo(subject: Subject) -> Step:
    module = importlib.import_module("methods.deyo")
    network, trained = configured(subject, module)
    settings = SimpleNamespace(
        wandb_log=False,
        filter_ent=1,
        filter_plpd=1,
        reweight_ent=1,
        reweight_plpd=1,
        aug_type="patch",
        patch_len=4,
        plpd_threshold=0.2,
    )
    margins = {"deyo_margin": 0.5 * LOG_CLASSES, "margin_e0": 0.4 * LOG_CLASSES}
    adapter = module.DeYO(network, settings, momentum(trained), **margins)
    return normalised(adapter, lambda adapter, images: adapter(images, 0)[0])


def cotta(subject: Subject, *, threshold: float) -> Step:
    module = importlib.import_module("cotta")
    module.get_tta_transforms = lambda: subject.tape.view
    network, trained = configured(subject, module)
    return normalised(module.CoTTA(network, adam(trained), mt_alpha=0.999, rst_m=0.01, ap=threshold))


def rotta(subject: Subject) -> Step:
    module = importlib.import_module("core.adapter.rotta")
    module.get_tta_transforms = lambda config: subject.tape.view
    numbers = {"MEMORY_SIZE": 64, "UPDATE_FREQUENCY": 64, "NU": 0.001, "ALPHA": 0.05, "LAMBDA_T": 1.0, "LAMBDA_U": 1.0}
    settings = SimpleNamespace(
        ADAPTER=SimpleNamespace(RoTTA=SimpleNamespace(**numbers)),
        CORRUPTION=SimpleNamespace(NUM_CLASS=CLASSES),
        OPTIM=SimpleNamespace(STEPS=1),
    )
    return normalised(module.RoTTA(settings, subject.copied(), adam))


def petal(subject: Subject, *, threshold: float) -> Step:
    module = importlib.import_module("petal")
    module.get_tta_transforms = lambda: subject.tape.view
    mean, variance = (module.configure_model(subject.copied()) for _ in range(2))
    for network, moment in ((mean, "mean"), (variance, "variance")):
        network.requires_grad_(False)
        for name, tensor in network.named_parameters():
            tensor.copy_(subject.adapter.prepared[f"{moment}.{name}"])
    network, trained = configured(subject, module)
    network.load_state_dict(mean.state_dict())
    numbers = {"mt_alpha": 0.999, "rst_m": 1.0, "ap": threshold, "spw": 1e-9, "perc": 0.03}
    return normalised(module.PETALFim(network, mean, variance, adam(trained), **numbers))


def palm(subject: Subject) -> Step:
    return normalised(make(subject, "classification", "ours", "OURS"))


def obao(subject: Subject, *, buffer: int, replayed: int) -> Step:
    adapter = make(subject, ".", "obao", "OBAO", changes={"OBAO": {"BUFFER_SIZE": buffer, "BUFFER_BS_SIZE": replayed}})
    adapter.buffer.to(torch.get_default_dtype())
    return normalised(adapter, lambda adapter, images: adapter.forward_and_adapt([images])[0] / 2)


def tca(subject: Subject) -> Step:
    """Say why there is none: which names the released versions use and do not define."""
    paths = ("classification/methods/tca.py", "tca.py")
    if "TTAMethod" in (subject.root / paths[0]).read_text(encoding="utf-8"):
        raise NotImplementedError(
            "this commit has code that has not been compared yet; earlier ones had none that runs"
        )
    history = _git(subject, "log", "--full-history", "--format=%H", "--", *paths).split()
    lacking: dict[str, list[str]] = {}
    for commit in history:
        for path in paths:
            try:
                text = _git(subject, "show", f"{commit}:{path}")
            except subprocess.CalledProcessError:
                continue
            if "TTAMethod" in text:
                lacking.setdefault(", ".join(undefined_names(text)), []).append(commit[:7])
    reasons = "; ".join(f"{names} in {', '.join(commits)}" for names, commits in lacking.items())
    raise NotImplementedError(
        f"the newest commit has a placeholder, and earlier ones use names that they do not define ({reasons})"
    )


def vcotta(subject: Subject) -> Step:
    """Return the step of VCoTTA's authors, with our variational network in place of theirs."""
    module = importlib.import_module("method.vcotta")
    module.get_tta_transforms = lambda: subject.tape.view
    network = module.configure_model(_Variational(copy.deepcopy(subject.adapter.start)))
    adapter = module.Vcotta(network, adam(network.parameters()), mt_alpha=0.999, class_num=CLASSES, batch_size=50)
    return normalised(adapter)


class _Variational(nn.Module):
    """Our variational network with the names that the authors' code calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sample: bool) -> Tensor:
        with sampling(self.network, "weight") if sample else nullcontext():
            logits: Tensor = self.network(x)
        return logits

    def compute_kl_with_prior(self, prior: _Variational) -> Tensor:
        return kl_divergence(self.network, prior.network)


def _git(subject: Subject, *words: str) -> str:
    command = ["git", "-C", str(subject.root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


_POSTERIOR = "the source posterior is ours"
_ALWAYS = "views on every batch"
PAIRS = (
    Pair("tent", "DequanWang/tent", tent, settings="cfgs/tent.yaml, with batches of ours"),
    Pair("eata", "mr-eggplant/EATA", eata, _MOMENTUM, changes=("the Fisher information is ours",), settings=_SGD),
    *(
        Pair(
            "sar",
            "mr-eggplant/SAR",
            partial(sar, cleared=cleared),
            settings=_SGD,
            changes=("a return to the source clears momentum and running mean",) if cleared else (),
            variant="momentum and mean cleared" if cleared else "",
        )
        for cleared in (False, True)
    ),
    Pair("deyo", "Jhyun17/DeYO", deyo, _MOMENTUM, changes=("shuffles are ours",), settings=_SGD),
    Pair(
        "cotta",
        "qinenergy/cotta",
        partial(cotta, threshold=2.0),
        {"threshold": 2.0},
        "cifar",
        settings="cifar/cfgs/cifar10/cotta.yaml",
        changes=(VIEWS, "restored weights are ours"),
        variant=_ALWAYS,
    ),
    Pair("rotta", "BIT-DA/RoTTA", rotta, settings="configs/adapter/rotta.yaml", changes=(VIEWS,)),
    Pair(
        "petal",
        "dhanajitb/petal",
        partial(petal, threshold=2.0),
        {"threshold": 2.0},
        "cifar",
        settings="cifar/cfgs/cifar10/petalfim.yaml",
        changes=(VIEWS, _POSTERIOR),
        variant=_ALWAYS,
    ),
    Pair(
        "palm",
        "sarthaxxxxx/PALM",
        palm,
        {},
        "classification",
        replaced,
        "classification/cfgs/cifar10_c/ours.yaml",
        (VIEWS,),
    ),
    *(
        Pair(
            "obao",
            "z1358/OBAO",
            partial(obao, buffer=buffer, replayed=replayed),
            {"buffer": buffer, "replayed": replayed},
            ".",
            replaced,
            "cfgs/cifar10_c/obao.yaml",
            (VIEWS, "images of the buffer are chosen as ours", "half the sum of its logits"),
            variant,
        )
        for buffer, replayed, variant in ((1000, 200, ""), (120, 50, "a full buffer of 120"))
    ),
    Pair("tca", "Successybbdwm/TCA", tca),
    Pair(
        "vcotta",
        "fanlyu/vcotta",
        vcotta,
        {"preset": "authors", "warmup": WarmUpConfig(epochs=1)},
        settings="cfgs/cifar10/vcotta.yaml",
        replaced=lambda subject: {"my_transforms": {}},
        changes=(VIEWS, "the variational network is ours", "a missing module, my_transforms, is empty"),
    ),
)
