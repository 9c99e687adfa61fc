"""Many normally distributed float32 numbers in a fraction of random.gauss's time: pieces of one sequence, each from a random place of it.
The sequence has 65,536 quantiles, chosen by two random bytes each."""
import array
import functools
import random
import statistics

SEQUENCE = 1 << 19


@functools.lru_cache
def sequence(middle, spread):
    normal = statistics.NormalDist(middle, spread)
    quantiles = [normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)]
    return array.array("f", map(quantiles.__getitem__, array.array("H", random.Random(SEQUENCE).randbytes(2 * SEQUENCE))))


def numbers(rng, n, middle, spread):
    all, out = sequence(middle, spread), array.array("f")
    while len(out) < n:
        part = min(n - len(out), SEQUENCE // 2)
        at = rng.randrange(SEQUENCE - part)
        out.extend(all[at : at + part])
    return out


def upper_halves(floats):
    """BF16 by truncation."""
    return array.array("H", floats.tobytes())[1::2]
