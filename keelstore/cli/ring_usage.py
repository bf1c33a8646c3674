"""What the ring builder says about itself: usage of every command, and the notes it frames. Pure."""

from __future__ import annotations

VERSION = "1.3"  # of the command line that this one is compatible with

_SEARCH_OPTIONS = """\
    --id N --region N --zone N --ip ADDRESS --port N --replication-ip ADDRESS --replication-port N
    --device NAME --weight W --meta TEXT"""

USAGE: dict[str, tuple[str, str]] = {  # command: arguments, explanation
    "": ("", "Show the ring and its devices. The flag DEL marks a device that leaves with the next rebalance."),
    "add": ("[r<region>]z<zone>-<ip>:<port>[R<r_ip>:<r_port>]/<device>[_<meta>] <weight> [...]\n"
            "or  --region N --zone N --ip ADDRESS --port N [--replication-ip ADDRESS] [--replication-port N]\n"
            "    --device NAME --weight W [--meta TEXT]",
            "Add devices. They get partitions with the next rebalance, so several changes can be made first."),
    "cancel_increase_partition_power": ("", "Take back prepare_increase_partition_power. Takes effect with write_ring;\n"
                                            "then the hard links made for the increase are to be cleaned up."),
    "create": ("<part_power> <replicas> <min_part_hours>",
               "Make a builder for 2^<part_power> partitions. A partition that was moved stays for <min_part_hours>."),
    "dispersion": ("[<tier regex>] [--recalculate] [--verbose]",
                   "Show how well replicas are kept apart; --verbose for each tier: its partitions, the percentage that is\n"
                   "too much there, the most replicas of a partition it should hold, and how many partitions have 0, 1, ...\n"
                   "of them in it. --recalculate counts anew and saves the builder."),
    "finish_increase_partition_power": ("", "End the increase, once all nodes have cleaned up.\n"
                                        "Takes effect with write_ring."),
    "increase_partition_power": ("", "Double the partitions, once all nodes have linked their objects into the new ones.\n"
                                     "Takes effect with write_ring."),
    "list_parts": (f"<search-value> [...]\nor\n{_SEARCH_OPTIONS}",
                   "List the partitions on the matching devices, and on how many of them each is."),
    "prepare_increase_partition_power": ("", "Announce twice as many partitions. Takes effect with write_ring; object\n"
                                             "servers then link new objects into both places. Only for object rings."),
    "pretend_min_part_hours_passed": ("", "Let the next rebalance move every partition. Dangerous: replicas that were just\n"
                                          "moved may not have arrived yet."),
    "rebalance": ("[<seed>] [--force] [--seed S] [--debug] [--format-version 1|2]",
                  "Assign the partitions anew, as far as they may be moved, and write the ring."),
    "remove": (f"<search-value> [...] [--yes]\nor\n{_SEARCH_OPTIONS} [--yes]",
               "Take devices out with the next rebalance. For failed ones; one that still works is better drained first\n"
               "by weight 0. --yes asks nothing."),
    "search": (f"<search-value>\nor\n{_SEARCH_OPTIONS}", "Show the matching devices."),
    "set_info": ("<search-value> [<ip>][:<port>][R[<r_ip>][:<r_port>]][/<device>][_<meta>] [...] [--yes]\n"
                 f"or\n{_SEARCH_OPTIONS}\n"
                 "    --change-ip ADDRESS --change-port N --change-replication-ip ADDRESS --change-replication-port N\n"
                 "    --change-device NAME --change-meta TEXT [--yes]",
                 "Change where a device is and what it is called. Partitions stay; write_ring makes the new ring."),
    "set_min_part_hours": ("<hours>", "Set how long a partition stays after a move: longer than a full replication takes."),
    "set_overload": ("<overload>[%]", "Set how much more than its weight asks for a device may get to keep replicas apart.\n"
                                      "Takes effect with the next rebalance."),
    "set_region": (f"<search-value> <region> [...] [--yes]\nor\n{_SEARCH_OPTIONS} <region> [--yes]",
                   "Move devices to a region. Takes effect with the next rebalance."),
    "set_replicas": ("<replicas>", "Set the number of replicas; 2.5 gives half of the partitions three and the others two.\n"
                                   "Takes effect with the next rebalance."),
    "set_weight": (f"<search-value> <weight> [...] [--yes]\nor\n{_SEARCH_OPTIONS} <weight> [--yes]",
                   "Set the share of partitions of devices. Takes effect with the next rebalance."),
    "set_zone": (f"<search-value> <zone> [...] [--yes]\nor\n{_SEARCH_OPTIONS} <zone> [--yes]",
                 "Move devices to a zone. Takes effect with the next rebalance."),
    "validate": ("", "Check the assignment of partitions."),
    "version": ("", "Show the versions of the ring file."),
    "write_builder": ("[<min_part_hours>]", "Make a builder of a ring file, when the builder is lost. Not all comes back."),
    "write_ring": ("[--format-version 1|2] [--dev-id-bytes 2|4]",
                   "Write the ring file, as after set_info; rebalance does it too."),
}

SEARCH_HELP = """\
A <search-value> has any of these parts, in this order, and at least one:

    d<id> r<region> z<zone> [-]<ip> :<port> R<replication ip> :<replication port> /<device> _<meta>

    d74                the device with id 74
    r4z1               zone 1 of region 4
    z1-1.2.3.4:5678    one server, one port; the - is only needed after an id, region or zone
    [::1]              IPv6 stands in brackets
    R:6210             replication port 6210
    /sdb1              devices called sdb1
    _shiny             devices with "shiny" somewhere in their meta data
"""

_WITH_SEARCH = frozenset({"list_parts", "remove", "search", "set_info", "set_region", "set_weight", "set_zone"})

EXIT_CODES = "Exit codes: 0 = operation successful\n            1 = operation completed with warnings\n            2 = error"

FORMAT_NOTICE = """\
Defaulting to --format-version=1. Rings of that version can be
read by every Swift. A later release may default to version 2;
name the version that your cluster needs.
"""


def usage(command: str, program: str) -> str:
    """How to call one command."""
    arguments, explanation = USAGE[command]
    file = "<ring_file>" if command in ("version", "write_builder") else "<builder_file>"
    first, *more = arguments.split("\n")
    lines = [" ".join(part for part in (program, file, command, first) if part), *(f"    {line}" for line in more)]
    return "\n".join([*lines, *(f"    {line}" for line in explanation.split("\n"))])


def command_usage(command: str, program: str) -> str:
    """How to call one command, with the grammar of search values where it takes one."""
    text = usage(command, program)
    return f"{text}\n\n{SEARCH_HELP}" if command in _WITH_SEARCH else text


def full_usage(program: str) -> str:
    """All commands."""
    blocks = [f"{program} {VERSION}", *(usage(command, program) for command in USAGE), SEARCH_HELP.rstrip()]
    line, lines = "Quick list:", []
    for command in sorted(filter(None, USAGE)):
        if len(line) + 1 + len(command) > 79:
            lines.append(line)
            line = " " * 11
        line += f" {command}"
    return "\n\n".join([*blocks, "\n".join([*lines, line]) + "\n" + EXIT_CODES])


def framed(*lines: str) -> str:
    """Text between two rules."""
    return "\n".join(["-" * 79, *lines, "-" * 79])


def rebalance_error(reason: object) -> str:
    return framed("An error has occurred during ring validation. The ring may be empty, or",
                  "have fewer devices than replicas.", "Original exception message:", f" {reason}")


def dispersion_note(dispersion: float) -> str:
    return framed(f"NOTE: Dispersion of {dispersion:.6f} indicates some parts are not", "      optimally dispersed.", "",
                  "      See the dispersion report; other weights or a higher overload can help.")


def balance_note(balance: float, hours: int) -> str:
    return framed(f"NOTE: Balance of {balance:.2f} indicates you should push this",
                  f"      ring, wait at least {hours} hours, and rebalance/repush.")
