"""What this machine can do: found out by trying, once, never guessed from names.

`probe()` is what `fasteomt doctor` prints. The functions below it take what they look at as arguments, so
that each can be asked about a machine that isn't here.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from packaging.requirements import Requirement
from packaging.version import Version

from .format_probe import FORMATS, FormatSupport, probe_format

# First CUDA release whose compiler knows the architecture (release notes of the CUDA toolkit).
_FIRST_CUDA = {
    (7, 0): "9.0",
    (7, 5): "10.0",
    (8, 0): "11.0",
    (8, 6): "11.1",
    (8, 7): "11.4",
    (8, 9): "11.8",
    (9, 0): "11.8",
    (10, 0): "12.8",
    (12, 0): "12.8",
    (10, 3): "12.9",
    (12, 1): "12.9",
    (11, 0): "13.0",
}
_LAST_CUDA_BEFORE_SM_75 = "12.x"  # CUDA 13 dropped everything older than sm_75

_EXTRAS = {
    "data": "demo, data, eval",
    "train": "LightlyTrain",
    "kernels": "GPU kernels",
    "supervision": "to_supervision",
}
# Used where they are present; no extra brings them.
_OPTIONAL = {
    "triton": "GPU kernels",
    "torchao": "comparison",
    "PyNvVideoCodec": "hardware decode",
}


@dataclass(frozen=True)
class Device:
    """A CUDA device. `problem` says why torch can't use it; None: it can."""

    index: int
    name: str
    arch: str
    memory_gib: float
    problem: str | None


@dataclass(frozen=True)
class Package:
    """A dependency: `wanted` is the version specifier ('' for any), `extra` the extra that brings it,
    `use` what it is for."""

    name: str
    version: str | None
    wanted: str
    extra: str | None
    use: str

    @property
    def state(self) -> str:
        """'ok', 'missing' or 'mismatch' (installed, but not a version that was asked for)."""
        if self.version is None:
            return "missing"
        fits = Requirement(f"{self.name}{self.wanted}").specifier.contains(self.version, prereleases=True)
        return "ok" if fits else "mismatch"

    @property
    def remedy(self) -> str:
        """The command that brings the wanted version."""
        if self.extra is not None:
            return f"pip install 'fasteomt[{self.extra}]'"
        return f"pip install '{self.name}{self.wanted}'"


@dataclass(frozen=True)
class Codec:
    """A codec of PyAV's FFmpeg; `name` is FFmpeg's. `available`: it could be opened."""

    name: str
    use: str
    available: bool


@dataclass(frozen=True)
class Capabilities:
    """Everything `probe()` found. `problems`: one line each, what is wrong and what to do."""

    fasteomt: str | None
    python: str
    platform: str
    cpu: str
    cpu_cores: int
    torch: str
    torch_cuda: str | None
    torch_archs: tuple[str, ...]
    driver: str | None
    driver_cuda: str | None
    devices: tuple[Device, ...]
    formats: tuple[FormatSupport, ...]
    packages: tuple[Package, ...]
    ffmpeg: str
    codecs: tuple[Codec, ...]
    problems: tuple[str, ...]


def has_code_for(capability: tuple[int, int], arch_list: Iterable[str]) -> bool:
    """Whether a torch build whose `arch_list` is e.g. ['sm_80', 'compute_90'] runs on a device.

    Machine code (`sm_XY`) runs on the same major version and an equal or later minor one; PTX
    (`compute_XY`) on anything later, compiled when loaded; `a` and `f` variants on no other architecture.
    """
    for arch in arch_list:
        kind, _, digits = arch.partition("_")
        exact_only = not digits.isdecimal()
        number = int(digits.rstrip("af"))
        built_for = (number // 10, number % 10)
        if built_for == capability:
            return True
        if exact_only or built_for > capability:
            continue
        if kind == "compute" or built_for[0] == capability[0]:
            return True
    return False


def arch_problem(
    name: str, capability: tuple[int, int], arch_list: Sequence[str], torch_version: str
) -> str | None:
    """One line that names the wheel needed, or None where this torch has code for the device."""
    if has_code_for(capability, arch_list):
        return None
    arch = f"sm_{capability[0]}{capability[1]}"
    known = [_FIRST_CUDA[key] for key in sorted(_FIRST_CUDA) if key <= capability]
    if capability < (7, 5):
        wheel = f"built for CUDA {_LAST_CUDA_BEFORE_SM_75} (CUDA 13 dropped {arch})"
    elif capability in _FIRST_CUDA:
        cuda = _FIRST_CUDA[capability]
        wheel = f"built for CUDA {cuda} or later (cu{cuda.replace('.', '')} or later) that lists {arch}"
    else:
        wheel = f"of the newest CUDA (after {max(known, key=Version)}) that lists {arch}"
    built_for = ", ".join(arch_list) or "no GPU"
    return (
        f"torch {torch_version} has no code for {name} ({arch}), only for {built_for}: "
        f"install a torch wheel {wheel}"
    )


def cuda_problem(torch_cuda: str | None, driver_cuda: str | None, available: bool) -> str | None:
    """Why there is a driver but no usable CUDA, in one line; None where nothing is wrong.

    Args:
        torch_cuda: the CUDA version torch was built for; None for a CPU build.
        driver_cuda: the newest CUDA version the driver serves; None without a driver.
        available: `torch.cuda.is_available()`.
    """
    if driver_cuda is None or available:
        return None
    if torch_cuda is None:
        return (
            f"an NVIDIA driver (CUDA {driver_cuda}) is there, but torch is a CPU build: "
            f"install a torch wheel built for CUDA {driver_cuda} or earlier"
        )
    if Version(driver_cuda).major < Version(torch_cuda).major:
        return (
            f"the driver serves CUDA {driver_cuda}, torch was built for CUDA {torch_cuda}: "
            f"update the driver, or install a torch wheel built for CUDA {driver_cuda} or earlier"
        )
    return (
        f"the driver serves CUDA {driver_cuda}, but torch finds no device: "
        "check CUDA_VISIBLE_DEVICES and that nvidia-smi lists a GPU"
    )


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(
    requirements: Iterable[str], installed: Callable[[str], str | None] = installed_version
) -> tuple[Package, ...]:
    """Dependencies in the order of the package's own metadata, then the optional ones.

    Args:
        requirements: lines as `importlib.metadata.requires` gives them. Lines for other platforms, and
            those of the `dev` extra, are left out.
        installed: looks a distribution's version up.
    """
    found = []
    for line in requirements:
        requirement = Requirement(line)
        name, wanted, marker = requirement.name, str(requirement.specifier), requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            found.append(Package(name, installed(name), wanted, None, "everything"))
            continue
        extra = next((extra for extra in _EXTRAS if marker.evaluate({"extra": extra})), None)
        if extra is not None:
            found.append(Package(name, installed(name), wanted, extra, _EXTRAS[extra]))
    return (*found, *(Package(name, installed(name), "", None, use) for name, use in _OPTIONAL.items()))


def package_problems(
    found: Iterable[Package], installed: Callable[[str], str | None] = installed_version
) -> list[str]:
    """Versions that differ from what is asked for, missing core packages, and wheels that overwrite one
    another, one line each. An extra that isn't installed is no problem."""
    problems = []
    for package in found:
        if package.state == "mismatch":
            problems.append(
                f"{package.name} {package.version} is installed, {package.wanted} is needed: {package.remedy}"
            )
        elif package.state == "missing" and package.extra is None and package.name not in _OPTIONAL:
            problems.append(f"{package.name} is not installed: {package.remedy}")
    if installed("opencv-python") and installed("opencv-python-headless"):
        problems.append(
            "opencv-python and opencv-python-headless are both installed and overwrite each other's files: "
            "pip uninstall opencv-python opencv-python-headless && pip install opencv-python-headless"
        )
    return problems


def devices() -> tuple[Device, ...]:
    """The CUDA devices torch sees."""
    if not torch.cuda.is_available():
        return ()
    archs = torch.cuda.get_arch_list()
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        found.append(
            Device(
                index=index,
                name=properties.name,
                arch=f"sm_{properties.major}{properties.minor}",
                memory_gib=round(properties.total_memory / 2**30, 1),
                problem=arch_problem(properties.name, capability, archs, torch.__version__),
            )
        )
    return tuple(found)


def formats(found: Sequence[Device]) -> tuple[FormatSupport, ...]:
    """Each number format on each usable device, and on the CPU, by running a small matmul in it."""
    targets = ["cpu", *(f"cuda:{device.index}" for device in found if device.problem is None)]
    return tuple(probe_format(name, target) for target in targets for name in FORMATS)


def codecs() -> tuple[Codec, ...]:
    """The codecs the commands use; encoders are opened, not only looked up."""
    import av

    def decodes(name: str) -> bool:
        try:
            return av.codec.Codec(name, "r").is_decoder
        except av.codec.codec.UnknownCodecError:
            return False

    def encodes(name: str, pix_fmt: str) -> bool:
        try:
            context = av.CodecContext.create(name, "w")
            context.width, context.height, context.pix_fmt = 64, 64, pix_fmt  # type: ignore[attr-defined]
            context.framerate = 25  # type: ignore[attr-defined]
            context.open()
        except (av.codec.codec.UnknownCodecError, av.FFmpegError, ValueError):
            return False
        return True

    return (
        Codec("libx264", "writes overlay.mp4", encodes("libx264", "yuv420p")),
        Codec("ffv1", "writes masks.mkv", encodes("ffv1", "gray")),
        Codec("h264", "reads H.264", decodes("h264")),
        Codec("hevc", "reads H.265", decodes("hevc")),
        Codec("vp9", "reads VP9", decodes("vp9") or decodes("libvpx-vp9")),
        # FFmpeg's own "av1" only drives hardware; software decoding is one of these two.
        Codec("av1", "reads AV1", decodes("libdav1d") or decodes("libaom-av1")),
    )


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def hardware_name(device: torch.device) -> str:
    """What computes on `device`, for records of timings, e.g. 'NVIDIA H200' or 'AMD EPYC 9R14, 2 cores'."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name()}, {os.cpu_count() or 1} cores"


def driver() -> tuple[str | None, str | None]:
    """Version of the NVIDIA driver and the newest CUDA it serves, e.g. ('580.159', '13.0')."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    number = ctypes.c_int(0)
    try:
        if ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(number)) != 0 or number.value == 0:
            return None, None
    except (OSError, AttributeError):
        return None, None
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None, cuda
    query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None, cuda
    return (answer.splitlines() or [""])[0].strip() or None, cuda


@functools.cache
def probe() -> Capabilities:
    """Look at this machine once; later calls return the same object."""
    import av

    try:
        requirements = importlib.metadata.requires("fasteomt") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    found_devices = devices()
    found_packages = packages(requirements)
    found_codecs = codecs()
    driver_version, driver_cuda = driver()

    problems = package_problems(found_packages)
    if not requirements:
        problems.insert(0, "fasteomt is not installed as a package, so its pins are unknown: pip install .")
    no_cuda = cuda_problem(torch.version.cuda, driver_cuda, torch.cuda.is_available())
    problems += [] if no_cuda is None else [no_cuda]
    problems += [device.problem for device in found_devices if device.problem is not None]
    problems += [
        f"PyAV's FFmpeg can't open {codec.name} ({codec.use}): pip install --force-reinstall av"
        for codec in found_codecs
        if not codec.available
    ]
    return Capabilities(
        fasteomt=installed_version("fasteomt"),
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_name(),
        cpu_cores=os.cpu_count() or 1,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        torch_archs=tuple(torch.cuda.get_arch_list()),
        driver=driver_version,
        driver_cuda=driver_cuda,
        devices=found_devices,
        formats=formats(found_devices),
        packages=found_packages,
        ffmpeg=av.ffmpeg_version_info,
        codecs=found_codecs,
        problems=tuple(problems),
    )
