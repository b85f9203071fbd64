"""Certificates of every shipped algorithm, and certificates with faults, put to three judges that
share no code.

``python -m tests.laws.certificates [COUNT] [SEED]`` first has every shipped algorithm of 1 to 16
ranks, and the program that each is lowered to, checked by ``simcoll-check``. Then COUNT
certificates (default a million) get a fault each in what was proved, in what is claimed about it,
or in how it is said to be proved. The checker, the prover (which reads the schedule back) and the
judge of the tests must agree on each; a yes to what the judge calls wrong is the worst that can
happen. ``1 SEED --only 17`` repeats mutant 17 of a seed and prints it. The exit status is 1 if any
two disagreed. Slices are in ``tests/laws/test_certificates.py``.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import simcoll_check
from simcoll.algorithms import ALGORITHMS
from simcoll.binding import bind
from simcoll.formats.schedules.certificate import MAX_MOVES, certificate_bytes
from simcoll.proving import check_lowering, lower, verify
from tests.support.certificate_judge import judge
from tests.support.certificate_mutants import drawn, mutated, proved
from tests.support.mutants import originals

MOST_SHOWN = 20


def checked(text: str | bytes) -> str:
    """What the checker says against a certificate; empty if nothing."""
    try:
        simcoll_check.check(json.loads(text))
    except (simcoll_check.Wrong, simcoll_check.Unreadable) as error:
        return f"{error}" or type(error).__name__
    return ""


def check_algorithm(algorithm, ranks, *, lowered: bool = True, most: int = MAX_MOVES) -> Counter:
    """Have the certificates of a shipped algorithm checked; how many there were of each kind.

    ``most``: certificates of schedules that move more chunks are left out.
    """
    done = Counter()
    for schedule in originals(tuple(ranks), (algorithm,)):
        if sum(int(step.count.sum()) for step in schedule.steps()) > most:
            done["left out"] += 1
            continue
        said = checked(certificate_bytes(schedule, verify(schedule)))
        assert not said, f"{schedule}: {said}"
        done["schedules"] += 1
        if lowered:
            plan = bind(schedule, 2 * schedule.layout.chunks)
            said = checked(certificate_bytes(lower(plan), check_lowering(plan)))
            assert not said, f"the program of {schedule}: {said}"
            done["programs"] += 1
    return done


@dataclass(slots=True)
class Verdicts:
    """How many mutants were right and wrong, by what was done to them, and every disagreement, with
    what replays it.
    """

    right: Counter = field(default_factory=Counter)
    wrong: Counter = field(default_factory=Counter)
    lines: list = field(default_factory=list)
    false_yes: int = 0


def mutant(number: int, seed: int):
    """Mutant of a number: the record, and what was done."""
    rng = random.Random(f"{seed}/{number}")
    return mutated(drawn(rng), rng)


def judge_mutant(number: int, seed: int, verdicts: Verdicts) -> None:
    """Put a mutant to all three."""
    record, done = mutant(number, seed)
    faults = judge(record)
    for name in done:
        (verdicts.wrong if faults else verdicts.right)[name] += 1
    place, said = f"1 {seed} --only {number} ({', '.join(done)})", {}
    for who, decide in (
        ("checker", lambda: checked(json.dumps(record))),
        ("prover", lambda: proved(record)),
    ):
        try:
            said[who] = decide()
        except Exception as error:  # noqa: BLE001 - anything but a verdict is a defect
            verdicts.lines.append(
                f"{place}: the {who} raises {type(error).__name__}: {error!s:.200}; the judge: "
                f"{faults!r}"
            )
    for who, refusal in said.items():
        if faults and not refusal:
            verdicts.false_yes += 1
            verdicts.lines.append(f"{place}: the {who} says yes; the judge: {faults}")
        elif refusal and not faults and not _stricter(who, record):
            verdicts.lines.append(f"{place}: the judge says yes; the {who}: {refusal:.300}")


def _stricter(who: str, record) -> bool:
    """Whether more is asked than the judge looks at: the checker, a symmetry, and the ranges of
    numbers also in a repeat of no turns; the prover, data that no collective is known for, and
    transfers that can have no path or wire format.
    """
    if who == "prover":
        blocks = record.get("blocks", ())
        travels = any(step.keys() & {"via", "wire"} for block in blocks for step in block["steps"])
        return record["collective"] is None or travels
    if record["subject"] != "schedule":
        return False
    played = [block for block in record["blocks"] if block.get("repeat") != 0]
    unplayed = len(record["blocks"]) - len(played)
    return record["proof"]["kind"] != "full" or (
        unplayed > 0 and not checked(json.dumps(record | {"blocks": played}))
    )


def play(count: int, seed: int, *, first: int = 0, say=lambda _: None) -> Verdicts:
    """Put mutants to all three judges."""
    verdicts = Verdicts()
    for number in range(first, first + count):
        before = len(verdicts.lines)
        judge_mutant(number, seed, verdicts)
        for line in verdicts.lines[before:]:
            say(line)
        if (number + 1) % 10_000 == 0:
            done = f"{number + 1 - first:,} of {count:,}"
            say(f"{done}: {len(verdicts.lines)} disagreements, {time.process_time():.0f} CPU s")
        if len(verdicts.lines) >= MOST_SHOWN:
            break
    return verdicts


def sweep(most_ranks: int, say) -> None:
    """Every shipped algorithm of 1 to so many ranks."""
    total = Counter()
    for algorithm in ALGORITHMS:
        total += check_algorithm(algorithm, range(1, most_ranks + 1))
        say(
            f"{algorithm.name} {algorithm.collective}: {dict(total)} so far, "
            f"{time.process_time():.0f} CPU s"
        )


def main() -> int:
    """Check and play what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--ranks", type=int, default=16, help="0: no sweep")
    parser.add_argument("--only", type=int)
    asked = parser.parse_args()

    def say(line: str) -> None:
        print(line, flush=True)

    if asked.only is not None:
        record, done = mutant(asked.only, asked.seed)
        say(json.dumps(record))
        say(
            f"{', '.join(done)}\njudge: {judge(record)}\nprover: {proved(record)}\n"
            f"checker: {checked(json.dumps(record))}"
        )
        return 0
    if asked.ranks:
        sweep(asked.ranks, say)
    verdicts = play(asked.count, asked.seed, say=say)
    for name in sorted({*verdicts.right, *verdicts.wrong}):
        say(f"{name}: {verdicts.wrong[name]:,} wrong, {verdicts.right[name]:,} right")
    yes, other = verdicts.false_yes, len(verdicts.lines) - verdicts.false_yes
    say(
        f"{asked.count:,} mutants: {yes} false yes, {other} other disagreements, "
        f"{time.process_time():.0f} CPU s"
    )
    return 1 if verdicts.lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
