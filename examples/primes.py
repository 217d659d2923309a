"""Functions as work: submit, map, a graph of futures, a failure, a gang. See docs/tutorials/python.md."""

import poise


@poise.task
def primes(first: int, last: int) -> int:
    """How many primes there are from `first` up to and without `last`."""
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(first, last))


@poise.task(cpu="0.5")
def total(*counts: int) -> int:
    return sum(counts)


@poise.task
def collatz(number: int) -> int:
    """Steps to 1, halving even numbers and taking odd ones times three plus one."""
    steps = 0
    while number != 1:
        number, steps = (number // 2 if number % 2 == 0 else 3 * number + 1), steps + 1
    return steps


@poise.task
def broken(number: int) -> float:
    return 1 / number


@poise.task(workers=2, cpu="0.5")
def together() -> str:
    return f"member {poise.rank()} of {poise.world_size()}"


if __name__ == "__main__":
    future = primes.submit(2, 10_000)
    print(future)
    print("primes below 10,000:", future.result())

    parts = [primes.submit(first, first + 10_000) for first in range(10_000, 50_000, 10_000)]
    print("primes below 50,000:", total.submit(future, *parts).result())

    print("longest way to 1 below 20,000:", max(collatz.map(range(1, 20_000))), "steps")

    try:
        broken.submit(0).result()
    except ZeroDivisionError as error:
        print("broken:", error)

    print(together.submit().result())
