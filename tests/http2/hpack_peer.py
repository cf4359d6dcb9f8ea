"""HPACK by another implementation: `encode` turns JSON lists of fields into blocks, `decode` turns blocks into JSON.

One connection: its tables are kept from line to line. A line `size N` sets the size of the encoder's table.
"""

import json
import sys

import hpack

mode = sys.argv[1]
encoder, decoder = hpack.Encoder(), hpack.Decoder(max_header_list_size=1 << 30)
for index, line in enumerate(sys.stdin.read().split("\n")):
    if line.startswith("size "):
        encoder.header_table_size = int(line[5:])
        continue
    if mode == "encode":
        fields = [(name.encode("latin-1"), value.encode("latin-1"), never) for name, value, never in json.loads(line)]
        print(encoder.encode(fields, huffman=index % 3 > 0).hex())
    else:
        fields = decoder.decode(bytes.fromhex(line), raw=True)
        print(json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in fields]))
