"""The constants of every corruption at severities 1 to 5, for 32, 64 and 224 pixel images.

They are those of CIFAR-10-C (32), Tiny-ImageNet-C (64) and ImageNet-C (224); Hendrycks and Dietterich, "Benchmarking
Neural Network Robustness to Common Corruptions and Perturbations" (2019).
"""

from __future__ import annotations

from typing import Final

from vcotta._util.errors import unknown_name

__all__ = ["EXTRA", "GROUPS", "STANDARD", "TABLES", "Constants", "constants", "list_corruptions", "nearest_table"]

Constants = tuple[float, ...]

STANDARD: Final = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen corruptions every benchmark uses, in the order of CIFAR-10-C."""

GROUPS: Final = {"noise": STANDARD[:3], "blur": STANDARD[3:7], "weather": STANDARD[7:11], "digital": STANDARD[11:]}
"""The fifteen by kind."""

EXTRA: Final = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four held-out corruptions of the same family."""

TABLES: Final = (32, 64, 224)
"""The image sides for which constants were published."""


def list_corruptions(group: str | None = None) -> list[str]:
    """Return the names of the nineteen corruptions, or of one of `GROUPS`, or of ``"extra"``, the held-out ones.

    Example:
        >>> list_corruptions("weather")
        ['snow', 'frost', 'fog', 'brightness']
    """
    if group is None:
        return [*STANDARD, *EXTRA]
    groups = {**GROUPS, "extra": EXTRA}
    if group not in groups:
        raise unknown_name("group", group, groups)
    return list(groups[group])


def _each(*values: float) -> tuple[Constants, ...]:
    return tuple((value,) for value in values)


def _with(last: float, *rows: Constants) -> tuple[Constants, ...]:
    return tuple((*row, last) for row in rows)


_SNOW_FLAKES: Final = (
    (0.1, 0.2, 1, 0.6, 8, 3),
    (0.1, 0.2, 1, 0.5, 10, 4),
    (0.15, 0.3, 1.75, 0.55, 10, 4),
    (0.25, 0.3, 2.25, 0.6, 12, 6),
    (0.3, 0.3, 1.25, 0.65, 14, 12),
)

# name: (32 px, 64 px, 224 px), five rows each; the comment names the columns.
_CONSTANTS: Final[dict[str, tuple[tuple[Constants, ...], tuple[Constants, ...], tuple[Constants, ...]]]] = {
    # standard deviation
    "gaussian_noise": (
        _each(0.04, 0.06, 0.08, 0.09, 0.10),
        _each(0.04, 0.08, 0.12, 0.15, 0.18),
        _each(0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    # photons at white
    "shot_noise": (_each(500, 250, 100, 75, 50), _each(250, 100, 50, 30, 15), _each(60, 25, 12, 5, 3)),
    # share of values hit
    "impulse_noise": (
        _each(0.01, 0.02, 0.03, 0.05, 0.07),
        _each(0.01, 0.02, 0.05, 0.08, 0.14),
        _each(0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    # standard deviation
    "speckle_noise": (
        _each(0.06, 0.1, 0.12, 0.16, 0.2),
        _each(0.15, 0.2, 0.25, 0.3, 0.35),
        _each(0.15, 0.2, 0.35, 0.45, 0.6),
    ),
    # sigma
    "gaussian_blur": (_each(0.4, 0.6, 0.7, 0.8, 1), _each(0.5, 0.75, 1, 1.25, 1.5), _each(1, 2, 3, 4, 6)),
    # radius, alias sigma
    "defocus_blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    # sigma, reach, passes
    "glass_blur": (
        ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    # radius, sigma
    "motion_blur": (
        ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    # step, number of zoom factors
    "zoom_blur": (
        ((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
        ((0.01, 7), (0.01, 12), (0.01, 16), (0.01, 21), (0.01, 26)),
        ((0.01, 12), (0.01, 16), (0.02, 11), (0.02, 13), (0.03, 11)),
    ),
    # mean, standard deviation, zoom, threshold, radius, sigma, image weight
    "snow": (
        tuple((*flakes, weight) for flakes, weight in zip(_SNOW_FLAKES, (0.95, 0.9, 0.9, 0.85, 0.8), strict=True)),
        tuple((*flakes, weight) for flakes, weight in zip(_SNOW_FLAKES, (0.8, 0.8, 0.7, 0.65, 0.6), strict=True)),
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    # image weight, frost weight, texture scale
    "frost": (
        _with(0.2, (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        _with(0.3, (1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        _with(1, (1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    ),
    # amount, decay
    "fog": (
        ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    # added to V
    "brightness": (_each(0.05, 0.1, 0.15, 0.2, 0.3), _each(0.1, 0.2, 0.3, 0.4, 0.5), _each(0.1, 0.2, 0.3, 0.4, 0.5)),
    # factor
    "contrast": (
        _each(0.75, 0.5, 0.4, 0.3, 0.15),
        _each(0.4, 0.3, 0.2, 0.1, 0.05),
        _each(0.4, 0.3, 0.2, 0.1, 0.05),
    ),
    # factor and offset on S
    "saturate": (
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
    # amplitude, sigma, jitter, and the base that converts these three to pixels (244 is in the original code)
    "elastic_transform": (
        _with(32, (0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        _with(64, (0, 0, 0.08), (0.05, 0.3, 0.06), (0.1, 0.08, 0.06), (0.1, 0.03, 0.03), (0.16, 0.03, 0.02)),
        _with(244, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    ),
    # linear factor
    "pixelate": (
        _each(0.95, 0.9, 0.85, 0.75, 0.65),
        _each(0.9, 0.8, 0.7, 0.6, 0.5),
        _each(0.6, 0.5, 0.4, 0.3, 0.25),
    ),
    # quality
    "jpeg_compression": (_each(80, 65, 58, 50, 40), _each(65, 58, 50, 40, 25), _each(25, 18, 15, 10, 7)),
    # mean, standard deviation, sigma, threshold, strength (water) or second sigma (mud), mud or not
    "spatter": (
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        (
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    ),
}


def constants(name: str, severity: int, table: int) -> Constants:
    """Return the constants of one corruption, severity and table, in the order its function takes them."""
    return _CONSTANTS[name][TABLES.index(table)][severity - 1]


def nearest_table(height: int, width: int) -> int:
    """Return the table nearest in ratio to the image's shorter side: 32 to 45 pixels, 64 to 119, and 224 beyond.

    Example:
        >>> nearest_table(28, 28), nearest_table(96, 128), nearest_table(299, 299)
        (32, 64, 224)
    """
    side = min(height, width)
    return 32 if side * side <= 32 * 64 else 64 if side * side <= 64 * 224 else 224
