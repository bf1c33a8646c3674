"""keelstore-ring-composer: one ring of several builders (``doc/admin/rings.md``)."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from keelstore.common.errors import RingError
from keelstore.common.ring import composite
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from keelstore.common.ring.errors import RingFileError

EXIT_OK, EXIT_ERROR = 0, 2
_NOTE = "\nNOTE: This tool is for experimental use and may\n      change in a later release.\n"


class _Failed(Exception):
    def __init__(self, text: str, error: object):
        super().__init__(f"{text}\nOriginal exception message:\n{error}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``argv`` (with the program's name first) and return its exit code."""
    program, *args = sys.argv if argv is None else argv
    print(_NOTE, file=sys.stderr)
    parser = argparse.ArgumentParser(prog=os.path.basename(program), description="Make one ring of several builders.")
    parser.add_argument("composite_builder_file", help="the file that remembers what the ring is made of")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("show", help="show the composite builder file")
    compose = commands.add_parser("compose", help="make the ring")
    compose.add_argument("builder_file", nargs="*", help="the builders, in order; none: those of the last time")
    compose.add_argument("--output", required=True, metavar="output_file", help="the ring file to write")
    compose.add_argument("--force", action="store_true", help="leave out the checks against the last composition")
    try:
        options = parser.parse_args(args)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_ERROR
    try:
        if options.command == "show":
            _show(options.composite_builder_file)
        else:
            _compose(options.composite_builder_file, options.builder_file, options.output, options.force)
    except _Failed as failed:
        print(failed, file=sys.stderr)
        return EXIT_ERROR
    return EXIT_OK


def _show(path: str) -> None:
    print(json.dumps(_load(path).as_dict(), indent=4, sort_keys=True))


def _load(path: str) -> composite.Composite:
    try:
        return composite.load(path)
    except RingError as error:
        raise _Failed("An error occurred while loading the composite builder file.", error) from None


def _compose(path: str, builder_files: Sequence[str], output: str, force: bool) -> None:
    known = _load(path) if os.path.exists(path) else composite.Composite()
    try:
        if builder_files:
            files = [os.path.abspath(file) for file in builder_files]
        else:
            files = [file for _, file in known.files]
        builders = [RingBuilder.load(file) for file in files]
        new, ring = composite.compose(known, builders, files, force=force, require_modified=True)
    except RingError as error:
        raise _Failed("An error occurred while composing the ring.", error) from None
    try:
        ring_format.save(ring, output)
    except RingFileError as error:
        raise _Failed("An error occurred while writing the composite ring file.", error) from None
    try:
        composite.save(new, path)
    except RingFileError as error:
        raise _Failed("An error occurred while writing the composite builder file.", error) from None


if __name__ == "__main__":
    sys.exit(main())
