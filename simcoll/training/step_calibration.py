"""Calibration of a GPU and its software by measured steps: a few named constants, hashed into every
result.
"""

from __future__ import annotations

import hashlib

import msgspec

from simcoll.errors import ConfigError, blamed_on, nearest
from simcoll.files.paths import shipped_files
from simcoll.files.reader_arguments import FilePath, path_of
from simcoll.files.strict import decode_toml, read_file

__all__ = [
    "UNCALIBRATED",
    "StepCalibration",
    "calibration_toml",
    "load_calibration",
    "shipped_calibration",
    "shipped_calibrations",
]

MAX_FILE_BYTES = 2**20
_RANGES = {
    "rate": (0.01, 1.5),
    "hbm": (0.01, 1.0),
    "attention": (0.01, 1.5),
    "unfused": (0.1, 10),
    "host_layer_us": (0, 1e7),
    "host_tp_us": (0, 1e7),
    "host_expert_us": (0, 1e7),
    "step_ms": (0, 1e7),
    "overlap": (0, 10),
}


class StepCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Constants that are not in data sheets.

    Attributes
    ----------
    rate
        Rate of matrix products in a training step over the highest measured rate (clocks under
        load).
    hbm
        Memory rate of element-wise kernels over the measured memory bandwidth.
    attention
        Rate of the attention kernel over the measured rate of fused attention, times ``rate``: 1 is
        FlashAttention-2 on A100 and 3 on H100.
    unfused
        Bytes moved by a layer's element-wise kernels over those of fused kernels: 1 with
        Transformer Engine or ``torch.compile``, more in eager PyTorch.
    host_layer_us
        Host time to launch the kernels of a layer's forward pass, in microseconds; a faster GPU
        waits for it.
    host_tp_us
        Additional host time of a layer with collectives of tensor parallelism.
    host_expert_us
        Additional host time of each expert on the GPU, whose products and casts are separate
        kernels.
    step_ms
        Time of a step not explained by any operation, in milliseconds.
    overlap
        Slow-down of computation while a collective runs on the same GPU: 0.1 is a tenth. 0, the
        default, is off.
    rows
        Number of measured steps in the fit.
    error
        Mean error of rows left out of the fit.
    source
        Origin of the measurements.
    gpu
        The GPU that was measured, or how its name begins; empty: any.

    Examples
    --------
    >>> default, slower = StepCalibration(), StepCalibration(rate=0.9)
    >>> default.hash == UNCALIBRATED.hash, slower.hash == UNCALIBRATED.hash
    (True, False)
    """

    rate: float = 1.0
    hbm: float = 0.8
    attention: float = 1.0
    unfused: float = 1.0
    host_layer_us: float = 0.0
    host_tp_us: float = 0.0
    host_expert_us: float = 0.0
    step_ms: float = 0.0
    overlap: float = 0.0
    rows: int = 0
    error: float | None = None
    source: str = ""
    gpu: str = ""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"calibration: {name}: expected {low} to {high}, got {value}")

    @property
    def hash(self) -> str:
        """Hash of the constants."""
        return hashlib.sha256(
            repr(tuple(float(getattr(self, name)) for name in _RANGES)).encode()
        ).hexdigest()[:16]

    @property
    def state(self) -> str:
        """One line for every result.

        >>> UNCALIBRATED.state
        'uncalibrated: rates of data sheets and single kernels'
        """
        if self.hash == UNCALIBRATED.hash:
            return "uncalibrated: rates of data sheets and single kernels"
        origin = f" from {self.rows} measured steps" if self.rows else ""
        accuracy = (
            f", {100 * self.error:.1f} % off on steps not fitted" if self.error is not None else ""
        )
        return f"calibration {self.hash}{origin}{accuracy}"


UNCALIBRATED = StepCalibration()


def load_calibration(path: FilePath) -> StepCalibration:
    """Load a calibration file, as ``simcoll calibrate step`` writes it.

    Raises
    ------
    ConfigError
        With the file and the place in it.
    """
    path = path_of(path, "load_calibration")
    with blamed_on(path):
        return decode_toml(read_file(path, MAX_FILE_BYTES), StepCalibration, path)


def shipped_calibrations() -> dict[str, str]:
    """Names of the shipped calibrations, with their sources.

    >>> list(shipped_calibrations())
    ['fsdp-a100', 'fsdp-h100', 'megatron-a100', 'megatron-experts']
    """
    return {
        name: load_calibration(path).source for name, path in shipped_files("calibrations").items()
    }


def shipped_calibration(name: str) -> StepCalibration:
    """Load a shipped calibration.

    >>> shipped_calibration("fsdp-h100").rows
    32

    Raises
    ------
    ConfigError
        With the nearest name.
    """
    files = shipped_files("calibrations")
    if name not in files:
        raise ConfigError(
            f"calibration {name!r} is neither a file nor shipped; {nearest(name, files)}"
        )
    return load_calibration(files[name])


def calibration_toml(calibration: StepCalibration) -> str:
    """The text of a calibration file.

    >>> print(calibration_toml(StepCalibration(rate=0.9)).splitlines()[0])
    rate = 0.9
    """
    lines = []
    for field in msgspec.structs.fields(calibration):
        value = getattr(calibration, field.name)
        if value is not None:
            lines.append(f"{field.name} = {msgspec.json.encode(value).decode()}")
    return "\n".join(lines) + "\n"
