"""The noise of a marginals round: which, how much, who adds it, and the random bytes of a secret key that it is drawn
from, so that it can be drawn again to the last bit. Counts and scales are in fixed-point units."""

import math
import secrets
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import gaussian_variance, l1_sensitivity, local_scale, share_variance
from device_sdk.privacy.samplers import RandomBytes, discrete_gaussians, discrete_laplaces
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan, NoiseMechanism

GRID = 1 << 20
"""The sampler takes Laplace scales in fractions of a unit with this denominator."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What is drawn for every word. scale: of the Laplace distribution, or the standard deviation of the Gaussian."""

    mechanism: NoiseMechanism
    scale: float

    @property
    def variance(self) -> float:
        """Of one draw, in squared units: 2 p / (1 - p)^2 with p = exp(-1 / scale), or the deviation's square."""
        if self.mechanism == "discrete_gaussian":
            return self.scale**2
        return 2.0 * math.exp(-1.0 / self.scale) / math.expm1(-1.0 / self.scale) ** 2


def plan_noise(plan: MarginalPlan) -> Noise:
    """One party's noise: the server's under trust ``central``, each device's otherwise. Central: such that one release
    costs at most ``plan.epsilon`` (and ``plan.delta``, where it is Gaussian). Mode ``paper``: scale 1 / epsilon words
    (Liu & Peng 2020, eq. 9)."""
    if plan.mechanism == "discrete_gaussian":
        variance = gaussian_variance(plan) if plan.trust == "central" else share_variance(plan)
        return Noise("discrete_gaussian", math.sqrt(variance))
    if plan.trust == "local":
        return Noise("discrete_laplace", float(local_scale(plan)))
    sensitivity = FIXED_POINT if plan.mode == "paper" else l1_sensitivity(plan)
    return Noise("discrete_laplace", sensitivity / plan.epsilon)


def released_variance(plan: MarginalPlan, reports: int) -> float:
    """Variance of one word's noise in a release of so many reports, in squared words: one draw of the server's, or one
    of every device's."""
    return (1 if plan.trust == "central" else reports) * plan_noise(plan).variance / FIXED_POINT**2


def add_noise(
    counts: NDArray[np.int64], plan: MarginalPlan, source: RandomBytes = secrets.token_bytes
) -> NDArray[np.int64]:
    """``counts`` [words], each plus an independent draw of the server's noise, whose bits come from ``source``: the
    system's generator, or the stream of a release's secret key (:func:`key_stream`). Never a seed. Raises PrivacyError
    if a release would cost more than plan.epsilon, and for a plan whose noise the devices add."""
    if plan.trust != "central":
        raise PrivacyError(f"trust: found {plan.trust}, where devices add the noise; expected central")
    if plan.mechanism == "discrete_gaussian":
        return counts + discrete_gaussians(counts.size, gaussian_variance(plan), source)
    # Rounded up: a larger scale costs less.
    scale = Fraction(math.ceil(Fraction(plan_noise(plan).scale) * GRID), GRID)
    sensitivity = FIXED_POINT if plan.mode == "paper" else l1_sensitivity(plan)
    cost = float(sensitivity / scale)
    # The scale was a float: one part in 10^12 is its rounding, anything more is a wrong scale.
    if cost > plan.epsilon * (1 + 1e-12):
        raise PrivacyError(f"noise scale {float(scale)}: costs {cost}, expected at most {plan.epsilon}")
    return counts + discrete_laplaces(counts.size, scale, source)


KEY_BYTES = 32


def new_key() -> bytes:
    """A secret key from the system's generator; there is no other way to make one."""
    return secrets.token_bytes(KEY_BYTES)


def key_stream(key: bytes, purpose: str) -> RandomBytes:
    """The bytes of a key for one purpose, from the first on: AES-256 in counter mode under HKDF-SHA256(key, purpose).
    Another key or another purpose has unrelated bytes. Raises PrivacyError for a key of another length."""
    if len(key) != KEY_BYTES:
        raise PrivacyError(f"key: found {len(key)} bytes, expected {KEY_BYTES}")
    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose.encode()).derive(key)
    # Every derived key has one stream only, so its counter begins at 0.
    encryptor = Cipher(algorithms.AES256(derived), modes.CTR(bytes(16))).encryptor()
    return lambda size: encryptor.update(bytes(size))
