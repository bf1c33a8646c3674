"""keelstore-ring-builder-analyzer: play a scenario of changes and say how a ring takes them (``doc/admin/rings.md``)."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from keelstore.common.errors import RingError
from keelstore.common.ring import analyzer

EXIT_OK, EXIT_FAILED = 0, 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``argv`` (with the program's name first) and return its exit code."""
    program, *args = sys.argv if argv is None else argv
    parser = argparse.ArgumentParser(prog=os.path.basename(program),
                                     description="Play a scenario of ring changes, in memory.")
    parser.add_argument("-c", "--check", action="store_true", help="only check the scenario")
    parser.add_argument("scenario_path", help="a JSON file (doc/admin/rings.md)")
    try:
        options = parser.parse_args(args)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_FAILED
    try:
        with open(options.scenario_path, "rb") as file:
            text = file.read()
    except OSError as error:
        print(f"Error opening scenario {options.scenario_path}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    try:
        scenario = analyzer.parse(text)
    except analyzer.ScenarioError as error:
        print(f"Invalid scenario {options.scenario_path}: {error}", file=sys.stderr)
        return EXIT_FAILED
    if options.check:
        return EXIT_OK
    try:
        analyzer.play(scenario, print)
    except RingError as error:
        print(f"Scenario {options.scenario_path} failed: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
