"""The methods: one file each, found by name."""

from vcotta._util.validation import Count, NonNegative, NonNegativeInt, Positive, Settings, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import RECONSTRUCTION_NOTE, Card, Preset
from vcotta.methods.guard import Guard
from vcotta.methods.parts.layers import train_only_normalisation
from vcotta.methods.prediction import Prediction
from vcotta.methods.registry import (
    DATASETS,
    build_adapter,
    check_distributed,
    choose_guard,
    configure,
    distribute,
    find_method,
    import_method,
    list_general_methods,
    list_methods,
    marked,
    register_method,
    warm_up_settings,
)

# isort: split
# The order of these lines is that of `list_methods`.
# isort: off
from vcotta.methods.source import Source, SourceConfig
from vcotta.methods.bn import BN, BNConfig
from vcotta.methods.tent import TENT, TENTConfig
from vcotta.methods.adacontrast import AdaContrast, AdaContrastConfig
from vcotta.methods.cotta import CoTTA, CoTTAConfig
from vcotta.methods.eata import EATA, EATAConfig
from vcotta.methods.rotta import RoTTA, RoTTAConfig
from vcotta.methods.petal import PETAL, PETALConfig
from vcotta.methods.rmt import RMT, RMTConfig
from vcotta.methods.santa import SANTA, SANTAConfig
from vcotta.methods.palm import PALM, PALMConfig
from vcotta.methods.surgeon import SURGEON, SURGEONConfig
from vcotta.methods.obao import OBAO, OBAOConfig
from vcotta.methods.tca import TCA, TCAConfig
from vcotta.methods.roid import ROID, ROIDConfig
from vcotta.methods.sar import SAR, SARConfig
from vcotta.methods.rdumb import RDumb, RDumbConfig
from vcotta.methods.cmf import CMF, CMFConfig
from vcotta.methods.deyo import DeYO, DeYOConfig
from vcotta.methods.foa import FOA, FOAConfig
from vcotta.methods.come import COME, COMEConfig
from vcotta.methods.rem import REM, REMConfig
from vcotta.methods.ecotta import ECoTTA, ECoTTAConfig
from vcotta.methods.becotta import BECoTTA, BECoTTAConfig
from vcotta.methods.swa import SWA, SWAConfig
from vcotta.methods.dss import DSS, DSSConfig
from vcotta.methods.vida import ViDA, ViDAConfig
from vcotta.methods.continual_mae import ContinualMAE, ContinualMAEConfig
from vcotta.methods.dvp import DVP, DVPConfig
from vcotta.methods.vcotta import VCoTTA, VCoTTAConfig
from vcotta.methods.vcl import VCL, VCLConfig
# isort: on

from vcotta.methods.io import load, save
from vcotta.methods.merging import Merged, merge, merge_states, with_learned

__all__ = [
    "BN",
    "CMF",
    "COME",
    "DATASETS",
    "DSS",
    "DVP",
    "EATA",
    "FOA",
    "OBAO",
    "PALM",
    "PETAL",
    "RECONSTRUCTION_NOTE",
    "REM",
    "RMT",
    "ROID",
    "SANTA",
    "SAR",
    "SURGEON",
    "SWA",
    "TCA",
    "TENT",
    "VCL",
    "AdaContrast",
    "AdaContrastConfig",
    "Adapter",
    "BECoTTA",
    "BECoTTAConfig",
    "BNConfig",
    "CMFConfig",
    "COMEConfig",
    "Card",
    "CoTTA",
    "CoTTAConfig",
    "ContinualMAE",
    "ContinualMAEConfig",
    "Count",
    "DSSConfig",
    "DVPConfig",
    "DeYO",
    "DeYOConfig",
    "EATAConfig",
    "ECoTTA",
    "ECoTTAConfig",
    "FOAConfig",
    "Guard",
    "Merged",
    "NonNegative",
    "NonNegativeInt",
    "OBAOConfig",
    "PALMConfig",
    "PETALConfig",
    "Positive",
    "Prediction",
    "Preset",
    "RDumb",
    "RDumbConfig",
    "REMConfig",
    "RMTConfig",
    "ROIDConfig",
    "RoTTA",
    "RoTTAConfig",
    "SANTAConfig",
    "SARConfig",
    "SURGEONConfig",
    "SWAConfig",
    "Settings",
    "Source",
    "SourceConfig",
    "TCAConfig",
    "TENTConfig",
    "UnitInterval",
    "VCLConfig",
    "VCoTTA",
    "VCoTTAConfig",
    "ViDA",
    "ViDAConfig",
    "build_adapter",
    "check_distributed",
    "choose_guard",
    "configure",
    "distribute",
    "find_method",
    "import_method",
    "list_general_methods",
    "list_methods",
    "load",
    "marked",
    "merge",
    "merge_states",
    "register_method",
    "save",
    "train_only_normalisation",
    "warm_up_settings",
    "with_learned",
]
