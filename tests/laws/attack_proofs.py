"""Directed attacks on every prover:
``python -m tests.laws.attack_proofs [--seconds 60] [--seed 1] [--only NAME] [--round K]``.

Unlike random mutants, these aim at the arithmetic and the representation. Every attack has false
variants, which must be refused with one of the two errors for people, and true twins, which must be
proved; players that share nothing with the provers say which is which. Prints a table by attack,
and a line that replays each failure; the exit status is 1 if there is any. One round of all is in
``tests/laws/test_attack_proofs.py``.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Iterator

from tests.support import (
    attacks_on_columns,
    attacks_on_programs,
    attacks_on_shortcuts,
    attacks_on_state,
    attacks_on_sums,
)
from tests.support.attack_cases import Attack, outcome

PARTS = (
    attacks_on_sums,
    attacks_on_columns,
    attacks_on_state,
    attacks_on_shortcuts,
    attacks_on_programs,
)
ATTACKS: tuple[Attack, ...] = tuple(attack for part in PARTS for attack in part.ATTACKS)
MOST_SHOWN = 200


def attempts(
    attack: Attack, seed: int, number: int, *, quick: bool
) -> Iterator[tuple[object, str, str, str]]:
    """Try all cases of a round: the case's truth, its label, the prover, and the outcome."""
    rng = random.Random(f"{attack.name} {seed} {number}")
    for case in attack.cases(rng, quick):
        verdict = case.verdict()
        if verdict.right != bool(case.right):
            yield case.right, case.label, "player", f"failure: the player says {verdict}"
            continue
        for trial in case.trials:
            kind, why = outcome(case, trial, verdict)
            yield case.right, case.label, trial.prover, f"{kind}: {why}" if why else kind


def table(tallies: dict[str, Counter]) -> str:
    """The outcome, in Markdown."""
    lines = [
        (
            "| attack | false variants refused | true twins proved | beyond a stated limit | failures "
            "|"
        ),
        "|---|---:|---:|---:|---:|",
    ]
    total = Counter()
    for name, tally in tallies.items():
        total.update(tally)
        lines.append(
            f"| {name} | {tally['refused']:,} | {tally['proved']:,} | {tally['declined']:,} | "
            f"{tally['failure']:,} |"
        )
    lines.append(
        f"| **all** | **{total['refused']:,}** | **{total['proved']:,}** | "
        f"**{total['declined']:,}** | **{total['failure']:,}** |"
    )
    return "\n".join(lines)


def run(
    attacks: list[Attack],
    seed: int,
    seconds: float,
    *,
    quick: bool = False,
    only_round: int | None = None,
    say=print,
) -> dict[str, Counter]:
    """Rounds of all attacks until the time is over, at least one."""
    tallies = {attack.name: Counter() for attack in attacks}
    end, number, said = time.monotonic() + seconds, only_round or 0, set()
    while True:
        for attack in attacks:
            small = quick or number % 4 != 3
            for right, label, prover, result in attempts(attack, seed, number, quick=small):
                kind = result.split(":")[0]
                tallies[attack.name][kind] += 1
                words = f"{attack.name}, {prover}: {result.split(': ', 1)[-1][:24]}"
                if kind == "failure" and len(said) < MOST_SHOWN and words not in said:
                    said.add(words)
                    twin = "true twin" if right is True else "false variant"
                    say(
                        f"FAILED {attack.name!r} / {twin} {label!r} / {prover}: "
                        f"{result.split(': ', 1)[-1]}"
                    )
                    mode = " --quick" if quick else ""
                    say(
                        f"  replay: python -m tests.laws.attack_proofs --only {attack.name!r} "
                        f"--seed {seed} --round {number}{mode}"
                    )
            if time.monotonic() > end and number:
                return tallies
        number += 1
        if only_round is not None or time.monotonic() > end:
            return tallies


def main() -> int:
    """Attack for as long as is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[attack.name for attack in ATTACKS], nargs="*")
    parser.add_argument("--round", type=int, help="play this round only, as a replay line says")
    parser.add_argument("--quick", action="store_true", help="the small sizes of the test suite")
    asked = parser.parse_args()
    warnings.simplefilter("error")  # an overflow that numpy only warns of is a failure
    attacks = [attack for attack in ATTACKS if not asked.only or attack.name in asked.only]
    begin = time.process_time()
    tallies = run(attacks, asked.seed, asked.seconds, quick=asked.quick, only_round=asked.round)
    print(table(tallies))
    print(f"\n{time.process_time() - begin:.0f} CPU seconds, seed {asked.seed}")
    return 1 if any(tally["failure"] for tally in tallies.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
