"""Makes, serialises and frees many objects of all sizes. Prints a hash of the contents."""

import hashlib
import json
import random

random.seed(1)
digest = hashlib.sha256()

table = {str(i): {"a": i, "b": [i] * (i % 10), "c": "x" * (i % 200)} for i in range(120000)}
text = json.dumps(table)
digest.update(text.encode())
parsed = json.loads(text)
for key in list(parsed)[::2]:
    del parsed[key]
digest.update(json.dumps(parsed).encode())

blocks = [random.randbytes(random.randrange(10, 5000)) for _ in range(20000)]
for _ in range(200000):
    blocks[random.randrange(len(blocks))] = bytes(random.randrange(10, 5000))
for block in blocks:
    digest.update(block)

grown = bytearray()
for i in range(200000):
    grown += b"%d" % i * 20
digest.update(grown)

words = {}
for i in range(300000):
    words.setdefault(f"word {i * 7919 % 99991}", []).append(i)
digest.update(repr(sorted((len(places), word) for word, places in words.items())).encode())
print(digest.hexdigest())
