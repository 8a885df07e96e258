"""Philox4x64-10 words of one position: token v reads lane v mod 4 of counter (v div 4, position, 0, 0), key (seed, 0).

Bit-compatible with NumPy's generator and with tl.philox on 64-bit operands.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

import numpy as np
from numpy.typing import NDArray

_WORD = 2**64
_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2E7470EE14C6C93), np.uint64(0xCA5A826395121157))
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox_words(seed: int, position: int, count: int, first: int = 0) -> NDArray[np.uint64]:
    """The words of tokens first … first + count - 1, uint64 [count]; first is a multiple of 4."""
    assert first % 4 == 0, f"tokens from {first} on begin inside a counter"
    # NumPy steps its 256-bit counter before the first word, so it starts one lower.
    start = (position * _WORD + first // 4 - 1) % _WORD**4
    counter = np.array([start >> shift & (_WORD - 1) for shift in (0, 64, 128, 192)], np.uint64)
    generator = np.random.Philox(counter=counter, key=np.array([seed, 0], np.uint64))
    return generator.random_raw(count)


def philox_words_at(seed: int, position: int, ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """The words of tokens `ids` [n] alone, uint64 [n]; the same as philox_words(…)[ids]."""
    wide = ids.astype(np.uint64)
    zero = np.zeros_like(wide)
    lanes = (wide >> np.uint64(2), zero + np.uint64(position), zero, zero)
    key = (seed, 0)
    for _ in range(_ROUNDS):
        high_0, low_0 = _multiply(_MULTIPLIERS[0], lanes[0])
        high_1, low_1 = _multiply(_MULTIPLIERS[1], lanes[2])
        lanes = (high_1 ^ lanes[1] ^ np.uint64(key[0]), low_1, high_0 ^ lanes[3] ^ np.uint64(key[1]), low_0)
        key = ((key[0] + _WEYL[0]) % _WORD, (key[1] + _WEYL[1]) % _WORD)
    words: NDArray[np.uint64] = np.choose((wide & np.uint64(3)).astype(np.intp), lanes)
    return words


def _multiply(a: np.uint64, b: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """High and low 64 bits of the product a * b."""
    a_low, a_high = a & _LOW, a >> _HALF
    b_low, b_high = b & _LOW, b >> _HALF
    middle = a_high * b_low + (a_low * b_low >> _HALF)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF), a * b
