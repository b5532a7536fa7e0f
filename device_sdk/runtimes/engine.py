"""Which runtime runs a bundle's networks: the one place that chooses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import Subset
from device_sdk.bundle.streaming import chosen
from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import Precision
from device_sdk.runtimes.phones import FILE as PHONES_FILE
from device_sdk.runtimes.phones import PhoneTraining
from device_sdk.runtimes.protocol import Training, Transducer
from device_sdk.runtimes.streaming import open_transducer
from device_sdk.runtimes.training import TrainingSession

Runtime = Literal["onnxruntime", "executorch"]
RUNTIMES: tuple[Runtime, ...] = ("onnxruntime", "executorch")


@dataclass(frozen=True, slots=True)
class Engine:
    """Opens what recognizes and what learns. programs: folder of ExecuTorch programs, as ``idiolect export executorch``
    wrote it; None is the folder ``executorch`` in the bundle's. threads: of each session. precision: of onnxruntime's
    recognition."""

    runtime: Runtime = "onnxruntime"
    programs: Path | None = None
    threads: int = 1
    precision: Precision = "float32"

    def transducer(self, bundle: Bundle, precision: Precision | None = None) -> Transducer:
        """precision: instead of the engine's own. Raises :class:`BundleError`, :class:`MissingExtraError`."""
        if self.runtime == "onnxruntime":
            return open_transducer(bundle, self.threads, precision or self.precision)
        from device_sdk.runtimes.executorch import open_programs

        return open_programs(self._folder(bundle), bundle, self.threads)

    def training(self, bundle: Bundle, subset: Subset | None = None) -> Training:
        """Gradients for a subset's parameters. Raises :class:`BundleError`, :class:`MissingExtraError` and,
        for a subset that bundle or runtime has no gradients for, :class:`ConfigurationError`."""
        subset = chosen(bundle.architecture, subset or bundle.subset)
        session = self._session(bundle, subset)
        by_encoder = any(name.startswith(("encoder.", "joiner.encoder.")) for name in session.trainable)
        return PhoneTraining(session, bundle, self.threads) if by_encoder and bundle.has(PHONES_FILE) else session

    def _session(self, bundle: Bundle, subset: Subset) -> Training:
        if self.runtime == "onnxruntime":
            return TrainingSession(bundle, self.threads, subset=subset)
        from device_sdk.runtimes.executorch import ExecutorchTrainingSession

        return ExecutorchTrainingSession(self._folder(bundle), bundle.lstm, self.threads, subset)

    def _folder(self, bundle: Bundle) -> Path:
        folder = Path(bundle.path) / "executorch" if self.programs is None else self.programs
        if not folder.is_dir():
            raise BundleError(
                f"{folder}: no such folder; runtime 'executorch' needs the programs that "
                f"`idiolect export executorch {bundle.path} {folder} --training` writes"
            )
        return folder
