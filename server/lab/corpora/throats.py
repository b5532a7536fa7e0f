"""Throats that nobody has: espeak's settings of a speaker, drawn anew for each.

The variants that training hears are half a hundred speakers, and a model knows these by heart. What tells speakers of
one accent apart is where the formants lie, how strong and how wide each is, how much is voice and how much breath."""

import numpy as np

_KLATT = 0.25
"""How often the sound is made by a Klatt synthesizer's source instead of espeak's own."""
_BREATH = 0.15


def draw_throat(generator: np.random.Generator) -> tuple[str, ...]:
    """Lines of an espeak variant file: formants 0 to 8 (frequency, strength and width in % of the language's), voice,
    consonants, roughness, flutter and tone."""

    def about(value: float, spread: float) -> int:
        return round(value * float(np.exp(generator.normal(0.0, spread))))

    length = float(np.exp(generator.normal(0.0, 0.05)))
    lines = [f"formant 0 {about(100, 0.05)} {about(100, 0.2)} {about(100, 0.2)}"]
    lines += [f"formant {n} {about(100 * length, 0.07)} {about(100, 0.2)} {about(100, 0.2)}" for n in (1, 2, 3)]
    upper = about(80, 0.35)
    lines += [f"formant {n} {about(100 * length, 0.05)} {about(upper, 0.2)} {about(100, 0.2)}" for n in range(4, 9)]
    lines.append(f"voicing {round(generator.uniform(50, 160))}")
    lines.append(f"consonants {round(generator.uniform(60, 180))} {round(generator.uniform(60, 180))}")
    lines += [f"roughness {generator.integers(0, 5)}", f"flutter {generator.integers(0, 9)}"]
    low, middle, high = (round(generator.uniform(*bounds)) for bounds in ((500, 700), (1100, 1500), (1900, 3000)))
    falling = np.sort(generator.uniform(40, 255, 3))[::-1].round().astype(int)
    lines.append(f"tone {low} {falling[0]} {middle} {falling[1]} {high} {falling[2]}")
    if generator.random() < _KLATT:
        lines.append(f"klatt {generator.integers(1, 7)}")
    elif generator.random() < _BREATH:
        levels = " ".join(str(int(level)) for level in generator.uniform(0, 25, 4))
        lines.append(f"breath {levels}")
    return tuple(lines)
