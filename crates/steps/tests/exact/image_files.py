"""Encoded files of many kinds, and the pixels that Pillow and OpenCV decode from them."""

import io
import struct
import sys
import warnings
import zlib

import cv2
import numpy as np
from PIL import Image, ImageOps

folder, kind, count, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
random = np.random.default_rng(seed)
cv2.setNumThreads(1)
warnings.simplefilter("ignore")


def side(most=96):
    return int(random.choice([random.integers(1, 20), random.integers(1, most)], p=[0.4, 0.6]))


def pixels(height, width, channels=3):
    content = random.integers(0, 4)
    if content == 0:
        return random.integers(0, 256, (height, width, channels), np.uint8)
    if content == 1:
        return (random.integers(0, 2, (height, width, channels)) * 255).astype(np.uint8)
    # Smooth, as photographs are.
    small = random.integers(0, 256, (max(1, height // 8), max(1, width // 8), channels), np.uint8)
    large = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).reshape(height, width, channels)
    noise = random.integers(-8, 9, large.shape) if content == 2 else 0
    return np.clip(large.astype(int) + noise, 0, 255).astype(np.uint8)


def jpeg():
    height, width = side(), side()
    options = {"quality": int(random.integers(1, 101)), "progressive": bool(random.integers(0, 2))}
    if random.integers(0, 3) == 0:
        options["restart_marker_blocks"] = int(random.integers(1, 8))
    if random.integers(0, 2):
        options["optimize"] = True
    if random.integers(0, 4) == 0:
        exif = Image.Exif()
        exif[0x0112] = int(random.integers(1, 9))
        options["exif"] = exif
    file = io.BytesIO()
    mode = random.integers(0, 8)
    if mode == 0:
        Image.fromarray(pixels(height, width, 1)[:, :, 0]).save(file, "JPEG", **options)
    elif mode == 1:
        Image.fromarray(pixels(height, width)).save(file, "JPEG", keep_rgb=True, subsampling=0, **options)
    elif mode in (2, 3, 4):  # OpenCV writes 4:1:1 and 4:4:0
        flags = [cv2.IMWRITE_JPEG_QUALITY, options["quality"], cv2.IMWRITE_JPEG_PROGRESSIVE, int(options["progressive"])]
        flags += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, [0x411111, 0x221111, 0x211111, 0x121111, 0x111111][random.integers(0, 5)]]
        flags += [cv2.IMWRITE_JPEG_RST_INTERVAL, int(random.integers(0, 9))]
        flags += [cv2.IMWRITE_JPEG_OPTIMIZE, int(random.integers(0, 2))]
        return cv2.imencode(".jpg", pixels(height, width), flags)[1].tobytes()
    else:
        Image.fromarray(pixels(height, width)).save(file, "JPEG", subsampling=int(random.integers(0, 3)), **options)
    return file.getvalue()


def palette_image(height, width, bits):
    image = Image.fromarray(random.integers(0, 1 << bits, (height, width)).astype(np.uint8))
    image = Image.frombytes("P", (width, height), image.tobytes())
    image.putpalette(random.integers(0, 256, 3 << bits).astype(np.uint8).tobytes())
    return image


def png():
    height, width = side(), side()
    options = {"optimize": bool(random.integers(0, 2))}
    mode = random.integers(0, 9)
    if mode == 0:
        image = Image.fromarray(pixels(height, width, 1)[:, :, 0])
    elif mode == 1:
        image = Image.fromarray(pixels(height, width, 2), "LA")
    elif mode == 2:
        image = Image.fromarray(pixels(height, width, 4), "RGBA")
    elif mode == 3:
        bits = int(random.choice([1, 2, 4, 8]))
        image = palette_image(height, width, bits)
        options["bits"] = bits
        if random.integers(0, 2):
            options["transparency"] = random.integers(0, 256, 1 << bits).astype(np.uint8).tobytes()
    elif mode == 4:
        image = Image.fromarray((pixels(height, width, 1)[:, :, 0] > 128))
    elif mode == 5:
        return interlaced(pixels(height, width))
    elif mode == 6:
        return grey_bits(height, width, int(random.choice([2, 4])))
    else:
        image = Image.fromarray(pixels(height, width))
        if random.integers(0, 3) == 0:
            options["transparency"] = tuple(int(value) for value in np.asarray(image)[0, 0])
    if random.integers(0, 4) == 0:
        exif = Image.Exif()
        exif[0x0112] = int(random.integers(1, 9))
        options["exif"] = exif
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_of(width, height, bits, colour, interlace, content):
    header = struct.pack(">2I5B", width, height, bits, colour, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def interlaced(image):
    """Adam7, without filters."""
    height, width, _ = image.shape
    content = b""
    for x, y, across, down in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)):
        part = image[y::down, x::across]
        if part.size:
            content += b"".join(b"\0" + row.tobytes() for row in part)
    return png_of(width, height, 8, 2, 1, content)


def grey_bits(height, width, bits):
    values = random.integers(0, 1 << bits, (height, width)).astype(np.uint8)
    each = 8 // bits
    padded = np.zeros((height, -(-width // each) * each), np.uint8)
    padded[:, :width] = values
    packed = np.zeros((height, padded.shape[1] // each), np.uint8)
    for index in range(each):
        packed |= padded[:, index::each] << (8 - bits * (index + 1))
    return png_of(width, height, bits, 0, 0, b"".join(b"\0" + row.tobytes() for row in packed))


def webp():
    height, width = side(), side()
    mode = random.integers(0, 3)
    image = Image.fromarray(pixels(height, width, 4), "RGBA") if mode == 0 else Image.fromarray(pixels(height, width))
    options = {"lossless": bool(random.integers(0, 2)), "quality": int(random.integers(1, 101)), "method": int(random.integers(0, 7))}
    if random.integers(0, 4) == 0:
        exif = Image.Exif()
        exif[0x0112] = int(random.integers(1, 9))
        options["exif"] = exif
    file = io.BytesIO()
    image.save(file, "WEBP", exact=bool(random.integers(0, 2)), **options)
    return file.getvalue()


def decoded(file):
    image = Image.open(io.BytesIO(file))
    plain = np.asarray(image.convert("RGB"))
    upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    opencv = cv2.cvtColor(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    return plain, upright, opencv


with open(folder + "/cases", "wb") as output:
    for _ in range(count):
        file = globals()[kind]()
        output.write(struct.pack("<I", len(file)) + file)
        for image in decoded(file):
            output.write(struct.pack("<2I", image.shape[1], image.shape[0]) + image.tobytes())
