"""Run `auto` and `specrun tune` on simulated machines, beside the best of a grid of fixed plans.

    python scripts/bench_machines.py [--machines NAME;...] [--agreements 55,70,85] [--temps 0,0.8]
                                     [--texts code,prose,copies] [--samples 1] [--no-grid] [--effort quick] [--json]
    python scripts/bench_machines.py --stages [--machines NAME;...] [--agreements 70] [--effort quick]
    python scripts/bench_machines.py --many 1,2,8,32 [--prompts 32] [--lengths 60,600] [-n 64]

Real small models run through specrun's own code (the embedded target, and drafts that are the target with noise), while
the package's clock goes by the tables of a machine (scripts/machines/tables.py says where each is from). So a run is
the same every time, and any hardware can be tried. Rates are relative to plain decoding's. `forecast` is the range that
the profile gives for a text, and `tune` how many plain passes `specrun tune` took.

--samples writes several texts of each kind, with other prompts and seeds, and ends with geometric means. --no-grid
writes no fixed plans. --stages says how many plain passes each stage of `specrun tune` took.

--many writes many prompts so many at a time, prompts included in the time; `read` is what their reading takes at least,
and `bound` the ratio if all else took no time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory

from machines import many, measure, pairs
from machines.tables import MACHINES, Machine

from specrun.speculation.method import OFF
from specrun.tuning.tuner import EFFORTS

HEAD = ("machine", "agree", "T", "text", "best", "first", "second", "tuned", "forecast", "tune", "best plan")
_WIDTHS = "{:<42} {:>5} {:>4} {:<8} {:>6} {:>6} {:>6} {:>6} {:>12} {:>5}  {}"
_OF_TUNE = ("settings", "target", "draft", "bits", "texts")
_MANY_HEAD = ("machine", "agree", "at", "seconds", "tokens/s", "ratio", "bound", "passes", "read")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", default="", help="parts of their names; all by default")
    parser.add_argument("--agreements", default=",".join(map(str, pairs.NOISES)))
    parser.add_argument("--temps", default="0,0.8")
    parser.add_argument("--texts", default=",".join(pairs.TEXTS))
    parser.add_argument("--samples", type=int, default=1, help="texts of each kind")
    parser.add_argument("--no-grid", action="store_true", help="no fixed plans but plain decoding")
    parser.add_argument("--effort", default="default", choices=["none", *EFFORTS], help="of tune; none: it is not run")
    parser.add_argument("--stages", action="store_true", help="plain passes of each stage of tune")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument("--many", default="", help="texts at a time; the first is what the others are compared with")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--lengths", default="60,600", help="tokens of the shortest and the longest prompt")
    parser.add_argument("-n", type=int, default=64, help="tokens of each answer")
    given = parser.parse_args()
    wanted = [part for part in given.machines.split(";") if part] or [""]
    machines = [machine for machine in MACHINES if any(part in machine.name for part in wanted)]
    if given.stages and given.effort == "none":
        parser.error("--stages needs an --effort of tune")
    if given.many:
        _many(machines, given)
    elif given.stages:
        _stages(machines, given)
    else:
        _rows(machines, given)
    return 0


def _rows(machines: Sequence[Machine], given: argparse.Namespace) -> None:
    """Print a row for each machine and text, and geometric means."""
    effort = None if given.effort == "none" else given.effort
    plans = (OFF.plan(),) if given.no_grid else measure.GRID
    kinds = product(map(float, given.temps.split(",")), given.texts.split(","), range(given.samples))
    cells = [measure.Cell(*cell) for cell in kinds]
    if not given.json:
        print(_WIDTHS.format(*HEAD))
    with TemporaryDirectory() as name:
        folder = Path(name)
        for agreement in map(int, given.agreements.split(",")):
            print(f"bench_machines.py: writing with fixed plans, agreement {agreement} %", file=sys.stderr)
            written = {(agreement, cell): measure.grid(folder, agreement, cell, plans) for cell in cells}
            for machine in machines:
                rows = []
                for row in measure.rows(folder, machine, agreement, cells, written, effort):
                    rows.append(row)
                    _print(row, given.json)
                if given.samples > 1 and not given.json:
                    _print_means(rows)


def _stages(machines: Sequence[Machine], given: argparse.Namespace) -> None:
    """Print how many plain passes' time each stage of `specrun tune` took."""
    print("{:<42} {:>5} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}".format("machine", "agree", *_OF_TUNE, "all"))
    with TemporaryDirectory() as name:
        for machine, agreement in product(machines, map(int, given.agreements.split(","))):
            with measure.data_folder(), measure.simulated(machine):
                _, seconds = measure.tune(Path(name), agreement, given.effort)
            plain = [1e3 * seconds[stage] / machine.ms(1, 64) for stage in _OF_TUNE]
            figures = " ".join(f"{n:>9.1f}" for n in (*plain, sum(plain)))
            print(f"{machine.name:<42} {agreement:>5} {figures}", flush=True)


def _many(machines: Sequence[Machine], given: argparse.Namespace) -> None:
    """Print a row for each machine and number of texts at a time."""
    least, most = map(int, given.lengths.split(","))
    sizes = range(least, most + 1)
    tokens = given.prompts * (least + most) / 2
    print("{:<42} {:>5} {:>4} {:>8} {:>9} {:>6} {:>6} {:>7} {:>6}".format(*_MANY_HEAD))
    with TemporaryDirectory() as name:
        for machine in machines:
            # In the passes in which a token takes least.
            read_s = tokens * min(machine.ms(n, 0) / n for n in (*sizes, 512)) / 1e3
            alone_s = 0.0
            for agreement, n in product(map(int, given.agreements.split(",")), map(int, given.many.split(","))):
                took = many.took(Path(name), machine, agreement, n, given.prompts, (least, most), given.n)
                alone_s = took.seconds if n == int(given.many.split(",")[0]) else alone_s
                ratios = f"{alone_s / took.seconds:>6.2f} {alone_s / read_s:>6.2f}"
                where = f"{machine.name:<42} {agreement:>5} {n:>4}"
                print(
                    f"{where} {took.seconds:>8.1f} {took.rate:>9.2f} {ratios} {took.n_passes:>7} {read_s:>6.1f}",
                    flush=True,
                )


def _print(row: measure.Row, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(row)), flush=True)
        return
    rates = [f"{rate / row.plain:.2f}" if rate else "" for rate in (row.best, row.first, row.second, row.tuned)]
    forecast = "{:.2f} to {:.2f}".format(*row.forecast) if row.forecast else ""
    tune_passes = f"{row.tune_passes:.0f}" if row.tune_passes else ""
    text = f"{row.text} {row.sample}" if row.sample else row.text
    where = row.machine, row.agreement, f"{row.temperature:g}", text
    print(_WIDTHS.format(*where, *rates, forecast, tune_passes, row.best_plan), flush=True)


def _print_means(rows: Sequence[measure.Row]) -> None:
    """The geometric means over the texts, by temperature, of second to first runs and of tuned to first ones."""
    for temperature in dict.fromkeys(row.temperature for row in rows):
        of_it = [row for row in rows if row.temperature == temperature]
        ratios = {
            "first/best": [row.first / row.best for row in of_it],
            "second/first": [row.second / row.first for row in of_it],
            "tuned/first": [row.tuned / row.first for row in of_it if row.tuned],
        }
        means = [
            f"{name} {geometric_mean(found):.3f} ({min(found):.2f} to {max(found):.2f})"
            for name, found in ratios.items()
            if found
        ]
        print(f"  {len(of_it)} texts at T={temperature:g}: {', '.join(means)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
