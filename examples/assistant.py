"""A small assistant that embeds the SDK: it hears commands, from files or a microphone, and learns from what you say.

    python assistant.py command.wav          # or without a file: the microphone, which needs idiolect[mic]

After each command, press Enter if it was heard right, type `n` if not, or type the right words."""

import argparse
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from device_sdk import Accepted, Bundle, Cancelled, Corrected, IdiolectError, MissingExtraError, Profiles, SlotLexicon
from device_sdk.audio import read_audio
from device_sdk.feedback import read_slots

RATE = 16_000
VALUES = {
    "action": ("turn on", "turn off", "play", "stop", "call", "set", "open", "close", "order"),
    "thing": ("lights", "light", "music", "radio", "timer", "alarm", "blinds", "heating", "door"),
    "room": ("kitchen", "bedroom", "bathroom", "living room", "garage", "hallway"),
}


def listen(files: list[Path], seconds: float) -> Iterator[np.ndarray]:
    """Audio of one command after the other, float32 at 16 kHz."""
    if files:
        yield from (read_audio(file) for file in files)
        return
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        raise MissingExtraError("the microphone needs: pip install 'idiolect[mic]'") from error
    while input("Press Enter and speak (q to leave) ") != "q":
        spoken = sounddevice.rec(int(seconds * RATE), samplerate=RATE, channels=1, dtype="float32", blocking=True)
        yield spoken[:, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--bundle", type=Path, help="another one than the packaged")
    parser.add_argument("--state", type=Path, default=Path.home() / ".idiolect-assistant")
    parser.add_argument("--user", default="me", help="who speaks; what is learned of each user is kept apart")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the microphone listens")
    options = parser.parse_args()

    options.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = options.state / "key"  # a real app keeps its key in the system's keyring
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(32))
    with Profiles(options.state / "device", key.read_bytes(), Bundle.open(options.bundle)) as profiles:
        device = profiles[options.user]
        for audio in listen(options.files, options.seconds):
            session = device.session(RATE)
            for start in range(0, len(audio), RATE // 10):
                print(f"\r... {session.feed(audio[start : start + RATE // 10]).text}", end="", flush=True)
            result = session.finish()
            found = read_slots(result.text, SlotLexicon(VALUES))
            print(f"\rheard: {result.text or '(nothing)'}\nwould: {', '.join(map(': '.join, found)) or 'ask again'}")
            if sys.stdin.isatty():
                answer = input("right? [Enter / n / the right words] ").strip()
                signal = Accepted() if not answer else Cancelled() if answer in ("n", "N") else Corrected(answer)
                device.feedback(result, signal)
                print(f"learned in {device.learn().seconds:.1f} s")
        print(*device.learned().describe(), sep="\n")


if __name__ == "__main__":
    try:
        main()
    except IdiolectError as error:
        sys.exit(f"assistant: {error}")
