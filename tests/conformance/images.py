#!/usr/bin/env python3
"""Images as the trainer reads them, against Pillow and numpy: every pixel the same, and the loss of a step by hand."""

import gzip
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "error")]
from files import read_tensors, write_tensors  # noqa: E402  (the folders above are not a package)
from report import PARE, SHARED, Report, ended, expect, pare  # noqa: E402

SIDE = 13  # no multiple of the blocks that a JPEG is made of


def read(*arguments):
    """Pixels and labels as bytes, or what it said."""
    result = subprocess.run([str(PARE.parent / "read_images"), *map(str, arguments)], capture_output=True)
    return (result.stdout, "") if result.returncode == 0 else (b"", result.stderr.decode())


def same(np, found, pixels, labels):
    content, said = found
    if said:
        return said
    wanted = np.concatenate([np.ascontiguousarray(pixels, dtype=np.uint8).ravel(), np.asarray(labels, dtype=np.uint8)])
    content = np.frombuffer(content, np.uint8)
    return expect(len(content), len(wanted)) or expect(int((content != wanted).sum()), 0)


def check_idx(report, np, work):
    random = np.random.default_rng(0)
    for name, pack in (("plain", lambda data: data), ("gzip", gzip.compress)):
        pixels, labels = random.integers(0, 256, (7, SIDE, SIDE)), random.integers(0, 10, 7)
        (work / "images").write_bytes(pack(struct.pack(">IIII", 0x803, 7, SIDE, SIDE) + pixels.astype(np.uint8).tobytes()))
        (work / "labels").write_bytes(pack(struct.pack(">II", 0x801, 7) + labels.astype(np.uint8).tobytes()))
        report.check(f"idx, {name}", same(np, read("idx", 1, SIDE, 10, work / "images", work / "labels"), pixels, labels))
    mnist = [SHARED / "data/mnist" / f"t10k-{part}-ubyte.gz" for part in ("images-idx3", "labels-idx1")]
    if not mnist[0].exists():
        report.skip("MNIST", f"no {mnist[0]}")
        return
    pixels, labels = (np.frombuffer(gzip.open(path).read(), np.uint8)[begin:] for path, begin in zip(mnist, (16, 8)))
    report.check("MNIST", same(np, read("idx", 1, 28, 10, *mnist), pixels, labels))


def check_cifar(report, np, work):
    random = np.random.default_rng(1)
    for name, labels in (("cifar10", 1), ("cifar100", 2)):
        records = random.integers(0, 256, (5, labels + 3072)).astype(np.uint8)
        records[:, :labels] %= 10
        (work / name).write_bytes(records.tobytes())
        report.check(name, same(np, read(name, 3, 32, 100, work / name), records[:, labels:], records[:, labels - 1]))


def interlaced(pixels, extra=b""):
    """A PNG in the seven passes of Adam7, which Pillow reads and does not write."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b""
    for x, y, step_x, step_y in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = pixels[y::step_y, x::step_x]
        rows += b"".join(b"\0" + row.tobytes() for row in part if part.shape[1])
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def check_interlaced(report, np, Image, work):
    pixels = np.random.default_rng(4).integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    gamma = struct.pack(">I", 4) + b"gAMA" + struct.pack(">I", 90000)  # which nobody applies to what is learned from
    gamma += struct.pack(">I", zlib.crc32(gamma[4:]))
    for name, extra in (("interlaced", b""), ("gamma", gamma)):
        (work / name / "class").mkdir(parents=True)
        (work / name / "class/a.png").write_bytes(interlaced(pixels, extra))
        decoded = np.asarray(Image.open(work / name / "class/a.png"))
        report.check(f"{name}: the peer reads what was written", expect(bool((decoded == pixels).all()), True))
        report.check(name, same(np, read("folders", 3, SIDE, 1, work / name), decoded.transpose(2, 0, 1), [0]))


def check_decoders(report, np, Image, work):
    """Every kind of file that Pillow writes: as it decodes them, so do we, or it is refused with a reason."""
    random = np.random.default_rng(2)
    smooth = np.kron(random.integers(0, 256, (4, 4, 3)), np.ones((4, 4, 1)))[:SIDE, :SIDE].astype(np.uint8)
    noise = random.integers(0, 256, (SIDE, SIDE, 3)).astype(np.uint8)
    colour = {"smooth": Image.fromarray(smooth), "noise": Image.fromarray(noise)}
    kinds = {}
    for name, image in colour.items():
        for quality in (30, 75, 100):
            for subsampling in (0, 1, 2):
                kinds[f"{name}-{quality}-{subsampling}.jpg"] = (image, {"quality": quality, "subsampling": subsampling})
        kinds[f"{name}-progressive.jpeg"] = (image, {"progressive": True})
        kinds[f"{name}.png"] = (image, {})
        kinds[f"{name}-palette.png"] = (image.quantize(20), {})
        for channels, words in ((1, "grey"), (3, "grey for colours")):
            kinds[f"{channels}-{name}.jpg"] = (image.convert("L"), {})
            kinds[f"{channels}-{name}.png"] = (image.convert("L"), {})
            kinds[f"{channels}-{name}-bits.png"] = (image.convert("1"), {})
    for number, (name, (image, options)) in enumerate(kinds.items()):
        folder = work / f"kind{number}"
        (folder / "class").mkdir(parents=True)
        image.save(folder / "class" / name, **options)
        channels = 1 if name.startswith("1-") else 3
        decoded = np.asarray(Image.open(folder / "class" / name).convert("L" if channels == 1 else "RGB")).reshape(SIDE, SIDE, channels)
        report.check(name, same(np, read("folders", channels, SIDE, 1, folder), decoded.transpose(2, 0, 1), [0]))
    refused = {"alpha.png": (colour["noise"].convert("RGBA"), {}, "transparent"), "cmyk.jpg": (colour["noise"].convert("CMYK"), {}, "4 colour components"),
               "deep.png": (Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257), {}, "16 bits"),
               "wide.jpg": (colour["noise"].resize((SIDE + 1, SIDE)), {}, f"{SIDE + 1} x {SIDE} pixels, expected {SIDE} x {SIDE}")}
    for name, (image, options, words) in refused.items():
        folder = work / name.partition(".")[0]
        (folder / "class").mkdir(parents=True)
        image.save(folder / "class" / name, **options)
        said = read("folders", 3, SIDE, 1, folder)[1]
        report.check(f"{name} is refused", "" if words in said and name in said else said or "it was read")
    said = read("folders", 1, SIDE, 1, work / "kind0")[1]
    report.check("colours for one channel", "" if "it has colours" in said else said)
    for name in ("smooth-75-2.jpg", "smooth-progressive.jpeg", "smooth.png"):
        whole = next(work.glob(f"kind*/class/{name}")).read_bytes()
        folder = work / f"cut-{name}" / "class"
        folder.mkdir(parents=True)
        problem = ""
        for count in range(3, len(whole) - 2, max(1, len(whole) // 40)):
            (folder / name).write_bytes(whole[:count])
            said = read("folders", 3, SIDE, 1, folder.parent)[1]
            problem = problem or ("" if "cannot be decoded" in said or "is no JPEG" in said else f"{count} bytes: {said or 'it was read'}")
        report.check(f"{name}, cut anywhere", problem)


def check_cifar_pictures(report, np, Image, work):
    archive = SHARED / "data/cifar10/cifar10_jpg.tar.xz"
    if not archive.exists():
        report.skip("CIFAR-10 as JPEG", f"no {archive}")
        return
    pixels, names = {}, []
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile():
                data = files.extractfile(member).read()
                path = work / "cifar" / pathlib.Path(*pathlib.Path(member.name).parts[-2:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                pixels[path] = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
            if len(pixels) == 400:
                break
    names = sorted({path.parent.name for path in pixels})
    order = sorted(pixels, key=lambda path: (path.parent.name, path.name))
    report.check("CIFAR-10 as JPEG", same(np, read("folders", 3, 32, 10, work / "cifar"), np.stack([pixels[path] for path in order]), [names.index(path.parent.name) for path in order]))


def check_step(report, np, work):
    """The first loss of a run, from the pixels of the file, the stored order and the stored start."""
    random = np.random.default_rng(3)
    pixels, labels = random.integers(0, 256, (40, 3, 32, 32)).astype(np.uint8), random.integers(0, 4, 40).astype(np.uint8)
    (work / "batch").write_bytes(b"".join(bytes([label]) + image.tobytes() for label, image in zip(labels, pixels)))
    mean, deviation = [0.49, 0.48, 0.45], [0.25, 0.2, 0.3]
    architecture = {"task": "classifier", "width": 24, "context": 17, "embedding": {"position": "learned", "class_token": True, "patch": {"size": 8, "channels": 3, "image": 32}},
                    "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 8, "mask": "full"}, "mlp": {"width": 32, "activation": "gelu"}}], "head": {"classes": 4}}
    config = {"task": "classifier", "architecture": architecture, "data": {"format": "cifar10", "train": ["batch"], "mean": mean, "deviation": deviation},
              "steps": 3, "batch": 8, "init": {"recipe": "plain"}, "optimiser": {"warmup": 0}}
    (work / "config.json").write_text(json.dumps(config))
    report.check("a run on images", ended(pare("train", "config.json", "-o", "run", cwd=work)))
    order = np.fromfile(work / "run/order.i32", np.int32)[:8]
    kept = [i for i in range(40) if int((i + 1) * 0.1 + 1e-9) == int(i * 0.1 + 1e-9)]  # a tenth, spread out, is measured on
    chosen = [kept[number] for number in order]
    channels = np.array([mean, deviation], np.float32).reshape(2, 1, 3, 1, 1)
    normal = ((pixels[chosen].astype(np.float32) / np.float32(255)) - channels[0]) / channels[1]
    write_tensors(work / "inputs.safetensors", {"pixel_values": ("F32", list(normal.shape), normal.astype("<f4").tobytes())})
    report.check("its start", ended(pare("run", "run/checkpoints/0", "-o", "out.safetensors", "--inputs", "inputs.safetensors", cwd=work)))
    tensors = dict(read_tensors(work / "out.safetensors"))
    sizes = {"F32": "<f4", "F64": "<f8"}
    loss = 0
    for row, label in enumerate(labels[chosen]):
        kind, _, data = tensors[f"logits.{row}"]
        logits = np.frombuffer(data, sizes[kind]).astype(np.float64).ravel()
        loss += (np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[label]) / 8
    found = next(line for line in map(json.loads, (work / "run/metrics.jsonl").read_text().splitlines()) if "loss" in line)["loss"]
    report.check("the first loss", "" if abs(found - loss) < 1e-5 else f"{found}, by hand {loss}")


def main():
    report = Report("images")
    np, Image = report.peers("numpy", "PIL.Image")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_idx(report, np, work)
        check_cifar(report, np, work)
        check_decoders(report, np, Image, work)
        check_interlaced(report, np, Image, work)
        check_cifar_pictures(report, np, Image, work)
        check_step(report, np, work)
    report.finish()


if __name__ == "__main__":
    main()
