"""A pseudo-random permutation of 0…count-1 that is computed, not stored: any place of it, forwards and backwards.

A value is written as two digits of about √count each. Every round adds a keyed hash of one digit to the other, modulo
that one's base (a Feistel network over two bases). The product of the bases exceeds `count` by less than √count, so a
value seldom lands beyond `count`; one that does goes through the network again until it is back (cycle walking). Up to
1,024 values are sorted by a keyed hash instead: so few would leave a network too little to mix.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import UsageError

Keys: TypeAlias = "int | NDArray[np.uint64]"
"""One key for all values, or one for each."""

MOST = 1 << 62
"""The largest count: differences and sums of positions stay within int64."""

_SMALL = 1024
_TABLES = 256  # made at a time: 2 MiB at most
_ROUNDS = 6
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: steps that spread evenly
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB


def _as_array(value: int) -> NDArray[np.uint64]:
    return np.array(value & _MASK, np.uint64)  # numpy takes an array without dimensions in half the time of a scalar


_U_GOLDEN, _U_MIX_A, _U_MIX_B = _as_array(_GOLDEN), _as_array(_MIX_A), _as_array(_MIX_B)
_U30, _U27, _U31, _U32 = _as_array(30), _as_array(27), _as_array(31), _as_array(32)


def key_of(*words: int) -> int:
    """A 64-bit key from whole numbers (seed, epoch, …); each counts modulo 2**64, and so does their order."""
    key = 0
    for word in words:
        key = _mix((key + _GOLDEN + _mix((int(word) + _GOLDEN) & _MASK)) & _MASK)
    return key


def keys_of(key: int, words: NDArray[np.int64]) -> NDArray[np.uint64]:
    """As `key_of(…, word)` for each of many words, where `key` is `key_of` of those before."""
    mixed = _mix_array(words.astype(np.uint64) + _U_GOLDEN)
    return _mix_array(mixed + _as_array(key + _GOLDEN))


def permute(values: ArrayLike, count: int, key: Keys) -> NDArray[np.int64]:
    """Where a permutation of 0…count-1 sends these values; one permutation per key. Any shape, in any order."""
    return _walk(values, count, key, backwards=False)


def inverse(values: ArrayLike, count: int, key: Keys) -> NDArray[np.int64]:
    """Which values `permute` sends to these: `inverse(permute(v, n, k), n, k) == v`."""
    return _walk(values, count, key, backwards=True)


def _walk(values: ArrayLike, count: int, key: Keys, *, backwards: bool) -> NDArray[np.int64]:
    places = _checked(values, count)
    keys = np.broadcast_to(key, places.shape).reshape(-1) if isinstance(key, np.ndarray) else key
    flat = places.reshape(-1)
    if count <= _SMALL:
        permuted = _by_table(flat, count, keys, backwards)
    else:
        permuted = _feistel(flat, count, keys, backwards)
        beyond = np.flatnonzero(permuted >= _as_array(count))
        while len(beyond):
            again = _feistel(permuted[beyond], count, keys if isinstance(keys, int) else keys[beyond], backwards)
            permuted[beyond] = again
            beyond = beyond[again >= _as_array(count)]
    return permuted.view(np.int64).reshape(places.shape)


def _checked(values: ArrayLike, count: int) -> NDArray[np.uint64]:
    if not 1 <= count <= MOST:
        raise UsageError(f"a permutation is of 1 to 2**62 values, not of {count:,}")
    places = np.asarray(values, np.int64).view(np.uint64)  # a negative value becomes one far beyond any count
    if places.size and int(places.max()) >= count:
        signed = places.view(np.int64)
        raise UsageError(f"places {int(signed.min()):,} to {int(signed.max()):,} do not all lie within 0…{count - 1:,}")
    return places


# Small counts: a table --------------------------------------------------------------------------------------------


def _by_table(places: NDArray[np.uint64], count: int, keys: Keys, backwards: bool) -> NDArray[np.uint64]:
    if isinstance(keys, int):
        return _table(count, keys, backwards)[places]
    distinct, which = np.unique(keys, return_inverse=True)
    if len(distinct) == 1:
        return _table(count, int(distinct[0]), backwards)[places]
    result, which = np.empty_like(places), which.reshape(-1)
    for first in range(0, len(distinct), _TABLES):
        here = np.flatnonzero((which >= first) & (which < first + _TABLES))
        tables = _tables(count, distinct[first : first + _TABLES], backwards)
        result[here] = tables[which[here] - first, places[here]]
    return result


@lru_cache(maxsize=32)
def _table(count: int, key: int, backwards: bool) -> NDArray[np.uint64]:
    return _tables(count, np.array([key], np.uint64), backwards).reshape(-1)


def _tables(count: int, keys: NDArray[np.uint64], backwards: bool) -> NDArray[np.uint64]:
    """One permutation per key. Hashes of different values under one key differ, so no tie biases the sort."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * _U_GOLDEN
    order = np.argsort(_mix_array(_mix_array(keys)[:, None] + steps), axis=1)
    return (np.argsort(order, axis=1) if backwards else order).astype(np.uint64)


# Large counts: a network ------------------------------------------------------------------------------------------


def _feistel(places: NDArray[np.uint64], count: int, keys: Keys, backwards: bool) -> NDArray[np.uint64]:
    base_right = isqrt(count - 1) + 1
    base_left = -(-count // base_right)
    bases = (_as_array(base_left), _as_array(base_right))
    left = places // bases[1]
    digits = (left, places - left * bases[1])
    hashed, spare = np.empty_like(left), np.empty_like(left)
    for number in reversed(range(_ROUNDS)) if backwards else range(_ROUNDS):
        side = number % 2
        moved, base = digits[side], bases[side]
        _hash_into(hashed, spare, digits[1 - side], _round_key(keys, number), base)
        # Of a sum and the same less (or plus) the base exactly one lies below the base; unsigned, the other is larger.
        if backwards:
            np.subtract(moved, hashed, out=moved)
            np.add(moved, base, out=spare)
        else:
            np.add(moved, hashed, out=moved)
            np.subtract(moved, base, out=spare)
        np.minimum(moved, spare, out=moved)
    left *= bases[1]
    left += digits[1]
    return left


def _hash_into(
    out: NDArray[np.uint64],
    spare: NDArray[np.uint64],
    digit: NDArray[np.uint64],
    key: NDArray[np.uint64],
    base: NDArray[np.uint64],
) -> None:
    """A number below `base` (itself below 2**32) from a digit and a key."""
    np.add(digit, key, out=out)
    np.multiply(out, _U_MIX_A, out=out)
    np.right_shift(out, _U32, out=spare)
    np.bitwise_xor(out, spare, out=out)
    np.multiply(out, _U_MIX_B, out=out)
    np.right_shift(out, _U32, out=out)
    np.multiply(out, base, out=out)
    np.right_shift(out, _U32, out=out)


def _round_key(keys: Keys, number: int) -> NDArray[np.uint64]:
    if isinstance(keys, int):
        return _round_keys(keys)[number]
    return _mix_array(keys + _as_array((number + 1) * _GOLDEN))


@lru_cache(maxsize=256)
def _round_keys(key: int) -> tuple[NDArray[np.uint64], ...]:
    return tuple(_as_array(_mix((key + (number + 1) * _GOLDEN) & _MASK)) for number in range(_ROUNDS))


# The mixer: 64 bits in, 64 bits out, one to one ------------------------------------------------------------------


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_A) & _MASK
    word = ((word ^ (word >> 27)) * _MIX_B) & _MASK
    return word ^ (word >> 31)


def _mix_array(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> _U30)) * _U_MIX_A
    words = (words ^ (words >> _U27)) * _U_MIX_B
    return words ^ (words >> _U31)
