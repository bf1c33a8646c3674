"""keelstore-ring-builder: make and change rings.

Arguments, output and exit codes are those that operators and their scripts know (``doc/admin/rings.md``): 0 is done, 1 done
with a warning, 2 refused. A refusal is one clear message and leaves the files as they were.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from keelstore.cli import ring_device_commands as devices
from keelstore.cli import ring_reports, ring_usage
from keelstore.cli.ring_arguments import Parser, UsageError
from keelstore.cli.ring_progress import ProgressLine
from keelstore.cli.ring_session import EXIT_ERROR, EXIT_OK, EXIT_WARNING, Refused, Session, say
from keelstore.common.errors import LockTimeout, RingError
from keelstore.common.locks import lock_directory
from keelstore.common.ring import composite
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import MAX_BALANCE, RingBuilder
from keelstore.common.ring.errors import BuilderFileMissing, RingFileError

LOCK_S = 15.0  # how long the -safe variant waits for another one at work


# -- the ring as a whole -----------------------------------------------------------------------------------------------


def create(session: Session) -> int:
    if len(session.args) != 3:
        raise UsageError("three arguments are needed")
    power, replicas, hours = session.args
    session.loaded = RingBuilder(_int(power, "part_power"), _float(replicas, "replicas"), _int(hours, "min_part_hours"))
    session.save()
    session.backup(session.builder_file)
    return EXIT_OK


def info(session: Session) -> int:
    builder = session.builder
    say(*ring_reports.summary(builder, session.builder_file, session.now, _ring_state(session)))
    say(*ring_reports.device_table(builder), *ring_reports.power_notes(builder, session.program))
    if not any(builder):
        say("There are no devices in this ring, or all devices have been deleted")
    return EXIT_OK


def _ring_state(session: Session) -> str:
    path = session.ring_file
    try:
        ring = ring_format.load(path)
    except FileNotFoundError:
        return f"Ring file {path} not found, probably it hasn't been written yet"
    except RingError as error:
        return f"Ring file {path} is invalid: {error!r}"
    ours = session.builder.ring()
    same = (ring.part_shift == ours.part_shift and ring.next_part_power == ours.next_part_power
            and ring.version == ours.version and ring.rows == ours.rows
            and list(ring.devices) == ring_format.plain_devices(ours.devices))
    return f"Ring file {path} is {'up-to-date' if same else 'obsolete'}"


def version(session: Session) -> int:
    try:
        ring = ring_format.load(session.ring_file)
    except FileNotFoundError:
        raise Refused(f"Ring file does not exist: {session.ring_file}") from None
    say(f"{session.ring_file}: Serialization version: {ring.format_version} ({ring.dev_id_bytes}-byte IDs), "
        f"build version: {ring.version}")
    return EXIT_OK


def rebalance(session: Session) -> int:
    parser = Parser()
    parser.add_argument("-f", "--force", action="store_true")
    parser.add_argument("-s", "--seed")
    parser.add_argument("-d", "--debug", action="store_true")
    parser.add_argument("--format-version", type=int, choices=ring_format.VERSIONS)
    options = parser.read(session.args)
    if len(options.values) > 1:
        raise UsageError("there is one seed")
    seed = options.values[0] if options.values else options.seed
    format_version = _format_version(options.format_version)
    builder = session.builder
    if builder.next_part_power is not None:
        raise Refused("Partition power increase in progress.\nYou need to finish the increase first before rebalancing.")
    left = builder.min_part_seconds_left(session.now)  # now: the rebalance itself starts the time anew
    was_changed, old_balance, old_dispersion = builder.devices_changed, builder.balance(), builder.dispersion or 0.0
    try:
        with ProgressLine(sys.stderr, options.debug) as line:
            done = builder.rebalance(session.now, seed, line.update)
            line.update("checking", 0.95)
            builder.validate()
    except RingError as error:
        raise Refused(ring_usage.rebalance_error(error)) from None
    dispersion = builder.dispersion or 0.0
    if not options.force:
        if not done.changed and not done.removed:
            say("No partitions could be reassigned.")
            say(f"The time between rebalances must be at least min_part_hours: {builder.min_part_hours} hours "
                f"({timedelta(seconds=left)} remaining)" if left else "There is no need to do so at this time")
            return EXIT_WARNING
        stuck = old_balance == done.balance == MAX_BALANCE
        if not was_changed and not stuck and abs(old_balance - done.balance) < 1 and abs(old_dispersion - dispersion) < 1:
            say("Cowardly refusing to save rebalance as it did not change at least 1%.")
            return EXIT_WARNING
    say(f"Reassigned {done.changed} ({100.0 * done.changed / builder.parts:.2f}%) partitions. "
        f"Balance is now {done.balance:.2f}.  Dispersion is now {dispersion:.2f}")
    code = EXIT_OK
    if dispersion > 0:
        say(ring_usage.dispersion_note(dispersion))
        code = EXIT_WARNING
    elif done.balance > 5 and done.balance / 100.0 > builder.overload:
        say(ring_usage.balance_note(done.balance, builder.min_part_hours))
        code = EXIT_WARNING
    # The builder first: a ring without its builder's memory of what moved could be moved again too early.
    session.save()
    session.backup(session.builder_file)
    session.write_ring(format_version)
    return code


def _format_version(given: int | None) -> int:
    if given is None:
        say(ring_usage.FORMAT_NOTICE)
    return given or ring_format.DEFAULT_VERSION


def dispersion(session: Session) -> int:
    parser = Parser()
    parser.add_argument("--recalculate", action="store_true")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.read(session.args)
    if len(options.values) > 1:
        raise UsageError("there is one filter")
    try:
        pattern = re.compile(options.values[0]) if options.values else None
    except re.error as error:
        raise Refused(f"Invalid filter {options.values[0]!r}: {error}") from None
    builder = session.builder
    before = builder.version
    if options.recalculate or not builder.graph:
        builder.measure_dispersion()
    lines, table, is_good = ring_reports.dispersion_report(builder, pattern)
    say(*lines, *(table if options.verbose else ()))
    if builder.version != before:
        session.save()
    return EXIT_OK if is_good else EXIT_WARNING


def validate(session: Session) -> int:
    session.builder.validate()
    return EXIT_OK


def write_ring(session: Session) -> int:
    parser = Parser()
    parser.add_argument("--format-version", type=int, choices=ring_format.VERSIONS)
    parser.add_argument("--dev-id-bytes", type=int, choices=(2, 4), default=2)
    options = parser.read(session.args)
    if options.values:
        raise UsageError("there is no such argument")
    format_version = _format_version(options.format_version)
    if not any(session.builder):
        raise Refused("Unable to write empty ring.")
    if session.builder.table is None:
        print('WARNING: Writing a ring with no partition assignments but with devices; did you forget to run "rebalance"?',
              file=sys.stderr)
    if format_version == 1 and options.dev_id_bytes > 2:
        raise Refused("Ring v1 only supports 2-byte dev IDs")
    session.write_ring(format_version, options.dev_id_bytes)
    return EXIT_OK


def write_builder(session: Session) -> int:
    if os.path.exists(session.builder_file):
        raise Refused(f"Cowardly refusing to overwrite existing Ring Builder file: {session.builder_file}")
    if session.args:
        hours = session.integer("min_part_hours")
    else:
        hours = 24
        print("WARNING: default min_part_hours may not match the value in the lost builder.", file=sys.stderr)
    try:
        ring = ring_format.load(session.ring_file)
    except FileNotFoundError:
        raise Refused(f"Ring file does not exist: {session.ring_file}") from None
    session.loaded = RingBuilder.from_ring(ring, hours)
    session.save()
    return EXIT_OK


def pretend_min_part_hours_passed(session: Session) -> int:
    session.builder.pretend_min_part_hours_passed()
    session.save()
    return EXIT_OK


def set_min_part_hours(session: Session) -> int:
    hours = session.integer("min_part_hours")
    session.builder.set_min_part_hours(hours)
    say(f"The minimum number of hours before a partition can be reassigned is now set to {hours}")
    session.save()
    return EXIT_OK


def set_replicas(session: Session) -> int:
    replicas = _float(session.one_argument(), "replicas")
    if not replicas >= 1:
        raise Refused("Replica count must be at least 1.")
    session.builder.set_replicas(replicas)
    say(f"The replica count is now {replicas:.6f}.", "The change will take effect after the next rebalance.")
    session.save()
    return EXIT_OK


def set_overload(session: Session) -> int:
    text = session.one_argument()
    overload = _float(text.removesuffix("%"), "overload")
    if text.endswith("%"):
        overload /= 100.0
    session.builder.set_overload(overload)
    is_odd = overload > 1 and not text.endswith("%")
    if is_odd:
        say("!?! Warning overload is greater than 100% !?!")
    say(f"The overload factor is now {overload * 100:.2f}% ({overload:.6f})",
        "The change will take effect after the next rebalance.")
    session.save()
    return EXIT_WARNING if is_odd else EXIT_OK


def _int(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(f"Invalid {what}: {text!r} is not a whole number") from None


def _float(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Refused(f"Invalid {what}: {text!r} is not a valid number.") from None


# -- the partition power -----------------------------------------------------------------------------------------------


def prepare_increase_partition_power(session: Session) -> int:
    if "object" not in os.path.basename(session.builder_file):
        raise Refused("Partition power increase is only supported for object rings.")
    if not session.builder.prepare_increase_partition_power():
        raise Refused("Ring is already prepared for partition power increase."
                      if session.builder.next_part_power is not None else "The partition power is at its limit.")
    session.save()
    say(f"The next partition power is now {session.builder.next_part_power}.",
        "The change will take effect after the next write_ring.",
        "All proxies, object servers, replicators and reconstructors must use that ring, and the existing",
        "objects must be linked into their next partitions, before the partition power is increased.")
    return EXIT_OK


def increase_partition_power(session: Session) -> int:
    if not session.builder.increase_partition_power():
        raise Refused("Ring partition power cannot be increased. Either the ring was not prepared yet,\n"
                      "or this operation has already run.")
    session.builder.age_moves(session.now)
    session.save()
    say(f"The partition power is now {session.builder.part_power}.",
        "The change will take effect after the next write_ring.")
    return EXIT_OK


def cancel_increase_partition_power(session: Session) -> int:
    if not session.builder.cancel_increase_partition_power():
        raise Refused("Ring partition power increase cannot be canceled.")
    session.save()
    say(f"The next partition power is now {session.builder.next_part_power}.",
        "The change will take effect after the next write_ring.",
        "All object servers must use that ring before the hard links are cleaned up.")
    return EXIT_OK


def finish_increase_partition_power(session: Session) -> int:
    if not session.builder.finish_increase_partition_power():
        raise Refused("Ring partition power increase cannot be finished.")
    session.save()
    say("The change will take effect after the next write_ring.")
    return EXIT_OK


# -- main --------------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, Callable[[Session], int]] = {
    "": info, "add": devices.add, "cancel_increase_partition_power": cancel_increase_partition_power, "create": create,
    "dispersion": dispersion, "finish_increase_partition_power": finish_increase_partition_power,
    "increase_partition_power": increase_partition_power, "list_parts": devices.list_parts,
    "prepare_increase_partition_power": prepare_increase_partition_power,
    "pretend_min_part_hours_passed": pretend_min_part_hours_passed, "rebalance": rebalance, "remove": devices.remove,
    "search": devices.search, "set_info": devices.set_info, "set_min_part_hours": set_min_part_hours,
    "set_overload": set_overload, "set_region": devices.set_region, "set_replicas": set_replicas,
    "set_weight": devices.set_weight, "set_zone": devices.set_zone, "validate": validate, "version": version,
    "write_builder": write_builder, "write_ring": write_ring,
}
_WITHOUT_BUILDER = frozenset({"create", "version", "write_builder"})


def file_names(given: str) -> tuple[str, str]:
    """The builder and the ring file that an argument means."""
    if given.endswith(".ring.gz"):
        return given.removesuffix(".ring.gz") + ".builder", given
    if given.endswith(".builder"):
        return given, given.removesuffix(".builder") + ".ring.gz"
    return given, given + ".ring.gz"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command ``argv`` (with the program's name first) and return its exit code."""
    program_path, *args = sys.argv if argv is None else argv
    program = os.path.basename(program_path)
    try:
        return _run(program, args)
    except Refused as refused:
        say(str(refused))
    except (RingError, ValueError) as error:
        say(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stdout = open(os.devnull, "w")  # whoever read our output has seen enough; nothing is left to flush
            return EXIT_OK
        say(f"{error.filename or program}: {error.strerror}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    return EXIT_ERROR


def _run(program: str, args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        say(ring_usage.full_usage(program))
        return EXIT_OK
    builder_file, ring_file = file_names(args[0])
    command = args[1] if len(args) > 1 else ""
    if builder_file != args[0] and command not in ("write_builder", "version"):
        say(f"Note: using {builder_file} instead of {args[0]} as builder file")
    folder = os.path.dirname(os.path.abspath(builder_file))
    lock: AbstractContextManager[object] = nullcontext()
    if program.endswith("-safe"):
        lock = lock_directory(folder, LOCK_S)
    try:
        with lock:
            session = Session(program, builder_file, ring_file, args[2:], time.time())
            if command not in _WITHOUT_BUILDER:
                session.loaded = _load(builder_file)
            if command not in COMMANDS:
                raise Refused(f"Unknown command: {command}")
            os.makedirs(os.path.join(folder, "backups"), exist_ok=True)
            return _call(session, command)
    except LockTimeout:
        raise Refused("Ring/builder dir currently locked.") from None


def _call(session: Session, command: str) -> int:
    if session.args and session.args[0] in ("-h", "--help"):
        say(ring_usage.command_usage(command, session.program))
        return EXIT_OK
    try:
        return COMMANDS[command](session)
    except UsageError as error:
        say(ring_usage.command_usage(command, session.program).rstrip())
        print(f"{session.program}: {error}", file=sys.stderr)
        return EXIT_ERROR


def _load(path: str) -> RingBuilder:
    try:
        return RingBuilder.load(path)
    except BuilderFileMissing:
        raise Refused(f"Ring Builder file does not exist: {path}") from None
    except RingFileError as error:
        if "accessed" in error.reason:
            raise Refused(f"Ring Builder file cannot be accessed: {path}") from None
        hint = ""
        try:
            composite.load(path)
            hint = " (it appears to be a composite ring builder file?)"
        except RingError:
            hint = f" ({error.reason.removeprefix('Ring Builder file is invalid: ')})"
        raise Refused(f"Ring Builder file is invalid: {path}{hint}") from None


if __name__ == "__main__":
    sys.exit(main())
