"""Say when somebody speaks in a recording: Silero VAD on a WAV file, or on a sentence of Jane Austen's."""

import argparse
import wave
from array import array

import packages

from gradlet import Tensor, TinyJit
from gradlet.models import silero, weights

MODEL = "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1"
SPEECH = "84ca382c795b1bef881ee19a57809667878ca2079ae3380c0643c942019a2d84"


def sound(path: str) -> list[float]:
    """The samples of a WAV file, -1 to 1."""
    with wave.open(path) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (silero.RATE, 1, 2):
            raise SystemExit(f"{path}: one channel of 16-bit samples at {silero.RATE} Hz is needed")
        return [value / 32768 for value in array("h", file.readframes(file.getnframes()))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wav", nargs="?", help="16 kHz, one channel, 16 bits")
    parser.add_argument("--quick", action="store_true", help="only the first three seconds")
    options = parser.parse_args()
    path = options.wav
    if path is None:
        folder = packages.fetch("debian:pocketsphinx-testdata", "usr/share/pocketsphinx/test/data/librivox/", SPEECH)
        path = str(folder / "sense_and_sensibility_01_austen_64kb-0870.wav")
    samples = sound(path)[: 3 * silero.RATE if options.quick else None]
    file = packages.fetch("pypi:silero-vad==6.2.3", "silero_vad/data/silero_vad_16k.safetensors", MODEL)
    model = weights.load(silero.SileroVAD(), file)

    @TinyJit
    def step(x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        share, (hidden, cell) = model(x, (hidden, cell))
        return share.realize(hidden, cell), hidden, cell

    hidden = cell = Tensor.zeros(1, 128).contiguous().realize()
    before, shares = [0.0] * silero.CONTEXT, []
    for start in range(0, len(samples) - silero.FRAME + 1, silero.FRAME):
        frame = before + samples[start : start + silero.FRAME]
        before = frame[-silero.CONTEXT :]
        share, hidden, cell = step(Tensor([frame]).realize(), hidden, cell)
        shares.append(share.item())
    seconds, begin = silero.FRAME / silero.RATE, None
    for number, share in enumerate([*shares, 0.0]):
        if begin is None and share > 0.5:
            begin = number
        elif begin is not None and share < 0.35:
            print(f"speech from {begin * seconds:.2f} to {number * seconds:.2f} s")
            begin = None
    print(f"{sum(share > 0.5 for share in shares) / len(shares):.0%} of {len(samples) / silero.RATE:.1f} s are speech")


if __name__ == "__main__":
    main()
