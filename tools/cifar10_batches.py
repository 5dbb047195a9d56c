#!/usr/bin/env python3
"""CIFAR-10's binary batches, of an archive that has its images as pictures: {train,test}/CLASS/NAME.jpg.

Usage: tools/cifar10_batches.py PICTURES.tar.xz FOLDER
Writes data_batch_1.bin to data_batch_5.bin and test_batch.bin: for each image its class, then its pixels, red, green,
blue. For builds that read no JPEG, and for machines where one file is faster than ten thousand. Needs Pillow.
"""

import concurrent.futures
import io
import pathlib
import sys
import tarfile

from PIL import Image

SIDE, BATCHES = 32, 5


def record(picture):
    label, data = picture
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if image.size != (SIDE, SIDE):
        raise SystemExit(f"a picture has {image.size[0]} x {image.size[1]} pixels, not {SIDE} x {SIDE}")
    return bytes([label]) + b"".join(channel.tobytes() for channel in image.split())


def main(archive, folder):
    parts = {"train": [], "test": []}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = pathlib.PurePath(member.name)
            if path.suffix in (".jpg", ".jpeg", ".png") and len(path.parts) > 2 and path.parts[-3] in parts:
                parts[path.parts[-3]].append((path.parts[-2:], tar.extractfile(member).read()))
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor() as pool:
        for part, pictures in parts.items():
            classes = sorted({name[0] for name, _ in pictures})
            if len(classes) != 10:
                raise SystemExit(f"{archive}: {part} has {len(classes)} classes, not 10")
            labelled = [(classes.index(name[0]), data) for name, data in sorted(pictures)]
            records = list(pool.map(record, labelled, chunksize=500))
            names = ["test_batch.bin"] if part == "test" else [f"data_batch_{i + 1}.bin" for i in range(BATCHES)]
            for i, name in enumerate(names):  # classes side by side: every fifth image, whatever its class
                (folder / name).write_bytes(b"".join(records[i :: len(names)]))
            print(f"{folder}: {len(records)} images in {', '.join(names)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
