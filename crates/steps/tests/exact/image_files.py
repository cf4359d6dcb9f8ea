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


def cmyk():
    file = io.BytesIO()
    options = {"quality": int(random.integers(1, 101)), "progressive": bool(random.integers(0, 2))}
    Image.fromarray(pixels(side(), side(), 4), "CMYK").save(file, "JPEG", subsampling=int(random.integers(0, 3)), **options)
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


class Bits:
    """The bits of a scan, with 0xFF stuffed."""

    def __init__(self):
        self.text = ""

    def put(self, value, size):
        if size:
            self.text += format(value, f"0{size}b")

    def number(self, value):
        size = int(abs(value)).bit_length()
        return size, value if value >= 0 else value + (1 << size) - 1

    def bytes(self):
        text = self.text + "1" * (-len(self.text) % 8)
        return bytes(int(text[at : at + 8], 2) for at in range(0, len(text), 8)).replace(b"\xff", b"\xff\0")


def coded():
    """A sequential JPEG file of our own, of any sampling factors, in one scan or in several, with short and long codes."""
    height, width = side(70), side(70)
    count = int(random.choice([1, 3, 4]))
    while True:
        factors = random.choice([1, 2, 4], (count, 2), p=[0.5, 0.35, 0.15])
        if factors.prod(1).sum() <= 10 or count == 1:
            break
    is_apart = bool(random.integers(0, 2))
    across, down = factors.max(0)
    symbols = [run << 4 | size for run in range(16) for size in range(1, 11)] + [0x00, 0xF0]
    random.shuffle(symbols)
    codes = {symbol: (index, 8) if index < 100 else ((100 << 8) + index - 100, 16) for index, symbol in enumerate(symbols)}
    segment = lambda marker, content: bytes([0xFF, marker]) + struct.pack(">H", len(content) + 2) + content
    file = b"\xff\xd8"
    # Four components are CMYK without the segment of Adobe's programs, CMYK or YCCK with it.
    if count == 4 and random.integers(0, 3):
        file += segment(0xEE, b"Adobe" + struct.pack(">3HB", 100, 0, 0, int(random.choice([0, 2]))))
    is_wide = bool(random.integers(0, 2))
    table = random.integers(1, 60, 64)
    file += segment(0xDB, bytes([is_wide << 4]) + table.astype(">u2" if is_wide else "u1").tobytes())
    parts = b"".join(bytes([index + 1, int(h) << 4 | int(v), 0]) for index, (h, v) in enumerate(factors))
    file += segment(0xC0 + int(random.integers(0, 2)), struct.pack(">BHHB", 8, height, width, count) + parts)
    file += segment(0xC4, b"\0" + bytes([0, 0, 0, 12] + [0] * 12) + bytes(range(12)))
    file += segment(0xC4, b"\x10" + bytes([0] * 7 + [100] + [0] * 7 + [len(symbols) - 100]) + bytes(symbols))
    interval = int(random.choice([0, random.integers(1, 6)]))
    file += segment(0xDD, struct.pack(">H", interval))

    def block(bits, predictions, index):
        mean = int(np.clip(predictions[index] + random.integers(-20, 21), -900 // table[0], 900 // table[0]))
        size, value = bits.number(mean - predictions[index])
        predictions[index] = mean
        bits.put(size, 4)
        bits.put(value, size)
        at = 1
        for _ in range(random.integers(0, 8)):
            run = int(random.integers(0, 20))
            # A run beyond the end of a block is corrupt; libjpeg has the number at the last place.
            if at > 63 or at + run > 63 and (run > 15 or random.integers(0, 2)):
                break
            value = int(random.integers(1, 12)) * int(random.choice([-1, 1]))
            at += run + 1
            while run > 15:
                bits.put(*codes[0xF0])
                run -= 16
            size, value = bits.number(value)
            bits.put(*codes[run << 4 | size])
            bits.put(value, size)
        if at < 64:
            bits.put(*codes[0])

    for scan in [[index] for index in range(count)] if is_apart else [list(range(count))]:
        content = bytes([len(scan)]) + b"".join(bytes([index + 1, 0]) for index in scan) + bytes([0, 63, 0])
        file += segment(0xDA, content)
        if len(scan) == 1:
            h, v = (int(factor) for factor in factors[scan[0]])
            size = lambda side, factor, most: -(-(-(-side * factor // most)) // 8)
            units, blocks = size(width, h, int(across)) * size(height, v, int(down)), {scan[0]: 1}
        else:
            units = -(-width // (8 * across)) * -(-height // (8 * down))
            blocks = {index: int(factors[index].prod()) for index in scan}
        bits, predictions, restarts = Bits(), [0] * count, 0
        for unit in range(int(units)):
            if interval and unit and unit % interval == 0:
                file += bits.bytes() + bytes([0xFF, 0xD0 + restarts % 8])
                bits, predictions, restarts = Bits(), [0] * count, restarts + 1
            for index in scan:
                for _ in range(blocks[index]):
                    block(bits, predictions, index)
        file += bits.bytes()
    return file + b"\xff\xd9"


def decoded(file):
    image = Image.open(io.BytesIO(file))
    plain = np.asarray(image.convert("RGB"))
    upright = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    encoded = np.frombuffer(file, np.uint8)
    opencv = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    grey = np.asarray(image.convert("L")), cv2.cvtColor(opencv, cv2.COLOR_BGR2GRAY), cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE)
    return plain, upright, cv2.cvtColor(opencv, cv2.COLOR_BGR2RGB), *grey


with open(folder + "/cases", "wb") as output:
    for _ in range(count):
        file = globals()[kind]()
        output.write(struct.pack("<I", len(file)) + file)
        for image in decoded(file):
            output.write(struct.pack("<3I", image.shape[1], image.shape[0], 1 if image.ndim == 2 else 3) + image.tobytes())
