"""Short vectors of integer lattices, to compute collisions of sums of public numbers.

The reduction of Lenstra, Lenstra and Lovasz in integers only (Cohen, *A Course in Computational
Algebraic Number Theory*, algorithm 2.6.7 without fractions, as given by de Weger): no rounding can
spoil a result, and none needs a proof.
"""

from __future__ import annotations

import random
from itertools import chain


def _dot(a: list[int], b: list[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def short_basis(
    basis: list[list[int]], *, numerator: int = 99, denominator: int = 100
) -> list[list[int]]:
    """An LLL-reduced basis of the lattice of some independent rows.

    >>> short_basis([[1, 0, 5000], [0, 1, 7001]])[0]
    [-7, 5, 5]
    """
    rows, n = [list(row) for row in basis], len(basis)
    # minors[i + 1] is the Gram determinant of the first i + 1 rows; lambdas[i][j] / minors[j + 1]
    # is the coefficient of Gram and Schmidt.
    minors, lambdas = [1] + [0] * n, [[0] * n for _ in range(n)]

    def subtract(k: int, i: int) -> None:
        times, step = lambdas[k][i], minors[i + 1]
        if 2 * abs(times) <= step:
            return
        q = (2 * times + step) // (2 * step)
        rows[k] = [x - q * y for x, y in zip(rows[k], rows[i], strict=True)]
        lambdas[k][i] -= q * step
        own, other = lambdas[k], lambdas[i]
        for j in range(i):
            own[j] -= q * other[j]

    def swap(k: int, last: int) -> None:
        rows[k], rows[k - 1] = rows[k - 1], rows[k]
        lambdas[k][: k - 1], lambdas[k - 1][: k - 1] = lambdas[k - 1][: k - 1], lambdas[k][: k - 1]
        m = lambdas[k][k - 1]
        new = (minors[k - 1] * minors[k + 1] + m * m) // minors[k]
        for i in range(k + 1, last + 1):
            t = lambdas[i][k]
            lambdas[i][k] = (minors[k + 1] * lambdas[i][k - 1] - m * t) // minors[k]
            lambdas[i][k - 1] = (new * t + m * lambdas[i][k]) // minors[k + 1]
        minors[k] = new

    minors[1] = _dot(rows[0], rows[0])
    k, last = 1, 0
    while k < n:
        if k > last:
            last = k
            for j in range(k + 1):
                value = _dot(rows[k], rows[j])
                for i in range(j):
                    value = (minors[i + 1] * value - lambdas[k][i] * lambdas[j][i]) // minors[i]
                if j < k:
                    lambdas[k][j] = value
                else:
                    minors[k + 1] = value
        subtract(k, k - 1)
        m = lambdas[k][k - 1]
        if (
            denominator * (minors[k - 1] * minors[k + 1] + m * m)
            < numerator * minors[k] * minors[k]
        ):
            swap(k, last)
            k = max(1, k - 1)
        else:
            for i in range(k - 2, -1, -1):
                subtract(k, i)
            k += 1
    return rows


def collision(
    rng: random.Random, numbers: list[int], modulus: int, most: int, tries: int = 8
) -> list[int] | None:
    """Coefficients from -1 to ``most``, not all 0, whose sum is 0 and whose weighted sum of the
    numbers is 0 modulo ``modulus``.

    Added to one of each, they give a multiset of as many numbers with the same sum. None if no try
    finds such a vector; every try numbers the rows anew.
    """
    n, scale = len(numbers), modulus.bit_length() ** 2
    for _ in range(tries):
        places = rng.sample(range(n), n)
        rows = [
            [int(i == j) for j in range(n)] + [scale * numbers[at], scale]
            for i, at in enumerate(places)
        ]
        rows.append([0] * n + [scale * modulus, 0])
        short = [row[:n] for row in short_basis(rows) if not any(row[n:]) and any(row[:n])]
        short.sort(key=lambda row: _dot(row, row))
        pairs = (
            [x + y for x, y in zip(a, b, strict=True)]
            for k, a in enumerate(short[:40])
            for b in short[:k]
        )
        less = (
            [x - y for x, y in zip(a, b, strict=True)]
            for k, a in enumerate(short[:40])
            for b in short[:k]
        )
        for row in chain(short, less, pairs):
            for sign in (1, -1):
                if min(x * sign for x in row) >= -1 and max(x * sign for x in row) <= most:
                    coefficients = [0] * n
                    for at, x in zip(places, row, strict=True):
                        coefficients[at] = sign * x
                    return coefficients
    return None
