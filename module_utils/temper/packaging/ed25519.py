"""Verify signatures of Ed25519, without a library: the functions of RFC 8032, section 6.

For public data alone: nothing here takes the same time for every input.
"""

from __future__ import annotations

import hashlib

PRIME = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, PRIME) % PRIME
ROOT = pow(2, (PRIME - 1) // 4, PRIME)

Point = tuple[int, int, int, int]


def add(first: Point, second: Point) -> Point:
    """Return the sum of two points, in extended coordinates."""
    a = (first[1] - first[0]) * (second[1] - second[0]) % PRIME
    b = (first[1] + first[0]) * (second[1] + second[0]) % PRIME
    c = 2 * first[3] * second[3] * D % PRIME
    d = 2 * first[2] * second[2] % PRIME
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % PRIME, g * h % PRIME, f * g % PRIME, e * h % PRIME)


def multiply(factor: int, point: Point) -> Point:
    """Return a point, added to itself `factor` times."""
    found = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            found = add(found, point)
        point = add(point, point)
        factor >>= 1
    return found


def decompress(data: bytes) -> Point | None:
    """Return the point that 32 bytes stand for; None where they stand for none."""
    number = int.from_bytes(data, "little")
    sign, y = number >> 255, number & ((1 << 255) - 1)
    if len(data) != 32 or y >= PRIME:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, PRIME) % PRIME
    x = pow(square, (PRIME + 3) // 8, PRIME)
    if (x * x - square) % PRIME:
        x = x * ROOT % PRIME
    if (x * x - square) % PRIME or (not x and sign):
        return None
    x = x if x & 1 == sign else PRIME - x
    return (x, y, 1, x * y % PRIME)


BASE = decompress((4 * pow(5, -1, PRIME) % PRIME).to_bytes(32, "little"))


def verifies(key: bytes, message: bytes, r: bytes, s: bytes) -> bool:
    """Return whether `r` and `s` (32 bytes each) are the key's signature of the message."""
    own, commitment, factor = decompress(key), decompress(r), int.from_bytes(s, "little")
    if not own or not commitment or not BASE or factor >= ORDER:
        return False
    challenge = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % ORDER
    left, right = multiply(factor, BASE), add(commitment, multiply(challenge, own))
    return not any((left[axis] * right[2] - right[axis] * left[2]) % PRIME for axis in (0, 1))
