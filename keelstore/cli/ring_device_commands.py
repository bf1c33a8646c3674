"""The commands of the ring builder that add, find, change and remove devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from keelstore.cli import ring_reports
from keelstore.cli.ring_arguments import (
    DeviceArguments,
    UsageError,
    device_arguments,
    new_devices,
    parse_weight,
    parse_whole,
    searches,
    searches_with_changes,
    searches_with_value,
)
from keelstore.cli.ring_session import EXIT_OK, Refused, Session, say
from keelstore.common.errors import RingError
from keelstore.common.ring.devices import RingDevice

_UNCHANGED = "The on-disk ring builder is unchanged."


def add(session: Session) -> int:
    if session.builder.next_part_power is not None:
        raise Refused("Partition power increase in progress. You need to finish the increase first before adding devices.")
    try:
        devices = new_devices(device_arguments(session.args), lambda line: print(line, file=sys.stderr))
        for device in devices:
            same = session.builder.find_same_place(device)
            if same:
                raise ValueError(f"Device {same.id} already uses {device.ip}:{device.port}/{device.device}.")
            device_id = session.builder.add_device(device)
            say(f"Device {session.builder.device(device_id)} with {device.weight} weight got id {device_id}")
    except (ValueError, RingError) as error:
        raise Refused(f"{error}\n{_UNCHANGED}") from None
    session.save()
    return EXIT_OK


def search(session: Session) -> int:
    found = session.builder.search(_one_search(session))
    if not found:
        raise Refused("No matching devices found")
    say(*ring_reports.search_table(session.builder, found))
    return EXIT_OK


def _one_search(session: Session) -> dict[str, object]:
    found = searches(device_arguments(session.args))
    if len(found) != 1:
        raise UsageError("one search value is needed")
    return found[0]


def list_parts(session: Session) -> int:
    conditions = searches(device_arguments(session.args))
    if session.builder.table is None:
        raise Refused(f'Specified builder file "{session.builder_file}" is not rebalanced yet. Please rebalance first.')
    found = {dev.id for one in conditions for dev in session.builder.search(one)}
    if not found:
        raise Refused("No matching devices found")
    say(*ring_reports.parts_table(session.builder.partitions_on(found)))
    return EXIT_OK


def set_weight(session: Session) -> int:
    def change(device_id: int, value: str) -> str:
        weight = parse_weight(value)
        session.builder.set_weight(device_id, weight)
        return f"weight set to {weight}"
    return _set_each(session, "weight", parse_weight, change)


def set_region(session: Session) -> int:
    def change(device_id: int, value: str) -> str:
        session.builder.set_region(device_id, parse_whole(value, "region"))
        return f"region set to {value}"
    return _set_each(session, "region", lambda value: parse_whole(value, "region"), change)


def set_zone(session: Session) -> int:
    def change(device_id: int, value: str) -> str:
        session.builder.set_zone(device_id, parse_whole(value, "zone"))
        return f"zone set to {value}"
    return _set_each(session, "zone", lambda value: parse_whole(value, "zone"), change)


def _set_each(session: Session, what: str, check: Callable[[str], object], change: Callable[[int, str], str]) -> int:
    arguments = device_arguments(session.args)
    wanted = searches_with_value(arguments)
    for _, value in wanted:
        check(value)
    for conditions, value in wanted:
        devices = _matching(session, conditions)
        _confirm(devices, arguments, f"Are you sure you want to update the {what} for these {len(devices)} devices?",
                 "Aborting device modifications")
        for device in devices:
            done = change(device.id, value)
            shown = device if what == "weight" else session.builder.device(device.id)
            say(f"{shown} {done}")
    session.save()
    return EXIT_OK


def set_info(session: Session) -> int:
    arguments = device_arguments(session.args, with_changes=True)
    for conditions, changes in searches_with_changes(arguments):
        devices = _matching(session, conditions)
        _confirm(devices, arguments, f"Are you sure you want to update the info for these {len(devices)} devices?",
                 "Aborting device modifications")
        for device in devices:
            say(f"Device {device} is now {session.builder.set_info(device.id, changes)}")
    session.save()
    return EXIT_OK


def remove(session: Session) -> int:
    if session.builder.next_part_power is not None:
        raise Refused("Partition power increase in progress. You need to finish the increase first before removing "
                      "devices.")
    arguments = device_arguments(session.args)
    for conditions in searches(arguments):
        devices = _matching(session, conditions)
        _confirm(devices, arguments, f"Are you sure you want to remove these {len(devices)} devices?",
                 "Aborting device removals")
        for device in devices:
            session.builder.remove(device.id)
            say(f"{device} marked for removal and will be removed next rebalance.")
    session.save()
    return EXIT_OK


def _matching(session: Session, conditions: dict[str, object]) -> list[RingDevice]:
    found = session.builder.search(conditions)
    if not found:
        raise Refused(f"Search value matched 0 devices.\n{_UNCHANGED}")
    return found


def _confirm(devices: Sequence[RingDevice], arguments: DeviceArguments, question: str, abort: str) -> None:
    if len(devices) < 2:
        return
    say("Matched more than one device:", *(f"    {device}" for device in devices))
    if arguments.is_sure:
        return
    print(f"{question} (y/N) ", end="", flush=True)
    if sys.stdin.readline().strip() != "y":
        raise Refused(abort)
