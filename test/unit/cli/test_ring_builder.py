import io
import os
import pickle
import re
import subprocess
import sys
import threading

import pytest

from keelstore.cli import ring_builder, ring_usage
from keelstore.common import fs
from keelstore.common.locks import lock_directory
from keelstore.common.ring import format as ring_format
from keelstore.common.ring.builder import RingBuilder
from test.unit.common.ring.support import cluster, rebalanced

PROGRAM = "keelstore-ring-builder"


class Cli:
    """The command in a directory of its own; calls return exit code and output."""

    def __init__(self, capsys, monkeypatch):
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.err = ""

    def __call__(self, *args, answer=None, program=PROGRAM):
        if answer is not None:
            self.monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        code = ring_builder.main([program, *map(str, args)])
        out, self.err = self.capsys.readouterr()
        return code, out

    def ok(self, *args, **more):
        code, out = self(*args, **more)
        assert code == 0, out
        return out


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    return Cli(capsys, monkeypatch)


@pytest.fixture
def made(cli):
    """A builder of four devices in three zones, balanced."""
    cli.ok("object.builder", "create", 6, 3, 1)
    cli.ok("object.builder", "add", "r1z1-127.0.0.1:6200/sda", 100, "r1z2-127.0.0.2:6200/sdb_x", 100,
           "r1z3-127.0.0.3:6200/sdc", 50, "r1z3-127.0.0.3:6200/sdd", 50)
    cli.ok("object.builder", "rebalance", "--seed", 1, "--format-version", 1)
    return cli


def test_without_arguments_all_commands_are_shown(cli):
    out = cli.ok()
    assert out.startswith(f"{PROGRAM} 1.3\n") and "Quick list: add" in out
    assert out.endswith("Exit codes: 0 = operation successful\n            1 = operation completed with warnings\n"
                        "            2 = error\n")
    assert all(command in out for command in ring_builder.COMMANDS)


def test_every_command_has_its_usage(cli):
    assert set(ring_usage.USAGE) == set(ring_builder.COMMANDS)


@pytest.mark.parametrize(("given", "files"), [
    ("x.builder", ("x.builder", "x.ring.gz")), ("x.ring.gz", ("x.builder", "x.ring.gz")), ("x", ("x", "x.ring.gz"))])
def test_file_names(given, files):
    assert ring_builder.file_names(given) == files


def test_create_makes_builder_and_backup(cli):
    cli.ok("object.builder", "create", 6, 3.5, 1)
    assert sorted(os.listdir(".")) == ["backups", "object.builder"]
    assert [re.fullmatch(r"\d+\.object\.builder", name) is not None for name in os.listdir("backups")] == [True]
    built = RingBuilder.load("object.builder")
    assert (built.part_power, built.replicas, built.min_part_hours, built.version) == (6, 3.5, 1, 0)
    assert built.id is not None and len(built.id) == 32


@pytest.mark.parametrize(("args", "text"), [
    ((33, 3, 1), "part_power must be at most 32 (was 33)"), ((3, 0.5, 1), "replicas must be at least 1 (was 0.500000)"),
    ((3, 3, -1), "min_part_hours must be non-negative (was -1)"), (("a", 3, 1), "'a'"), ((3, "b", 1), "'b'"), ((3,), "create")])
def test_create_refuses_nonsense(cli, args, text):
    code, out = cli("x.builder", "create", *args)
    assert code == 2 and text in out and not os.path.exists("x.builder")


def test_a_missing_builder(cli):
    assert cli("no.builder") == (2, "Ring Builder file does not exist: no.builder\n")
    assert cli("no.builder", "bogus") == (2, "Ring Builder file does not exist: no.builder\n")


def test_a_broken_builder_is_refused_by_every_command(cli, tmp_path):
    (tmp_path / "x.builder").write_bytes(b"junk")
    for command in ("", "add", "rebalance", "search", "validate", "write_ring", "set_weight"):
        code, out = cli("x.builder", *([command] if command else []))
        assert code == 2 and out.startswith("Ring Builder file is invalid: x.builder")


def test_a_builder_that_runs_code_is_refused(cli, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "flag"),)
    (tmp_path / "x.builder").write_bytes(pickle.dumps(Bomb()))
    assert cli("x.builder")[0] == 2
    assert not os.path.exists("flag")


def test_a_composite_file_in_place_of_a_builder(cli, tmp_path):
    (tmp_path / "all.json").write_text('{"components": [], "component_builder_files": {}, "version": 1, '
                                       '"serialization_version": 1}')
    code, out = cli("all.json")
    assert (code, out) == (2, "Ring Builder file is invalid: all.json (it appears to be a composite ring builder file?)\n")


def test_unknown_command(made):
    assert made("object.builder", "bogus") == (2, "Unknown command: bogus\n")


def test_the_ring_may_be_named_in_place_of_the_builder(made):
    assert made.ok("object.ring.gz").startswith("Note: using object.builder instead of object.ring.gz as builder file\n")


def test_info(made):
    lines = made.ok("object.builder").splitlines()
    assert re.fullmatch(r"object\.builder, build version 5, id [0-9a-f]{32}", lines[0])
    assert lines[1] == ("64 partitions, 3.000000 replicas, 1 regions, 3 zones, 4 devices, 2-byte IDs, 0.00 balance, "
                        "0.00 dispersion")
    assert re.fullmatch(r"The minimum number of hours before a partition can be reassigned is 1 "
                        r"\((1:00:00|0:59:5\d) remaining\)", lines[2])
    assert lines[3] == "The overload factor is 0.00% (0.000000)"
    assert lines[4] == "Ring file object.ring.gz is up-to-date"
    assert lines[5] == ("Devices:   id region zone ip address:port replication ip:port  name weight partitions balance "
                        "flags meta")
    assert lines[6].startswith("            0      1    1  127.0.0.1:6200      127.0.0.1:6200   sda 100.00         64 ")
    assert lines[7].endswith("       x")


def test_info_tells_the_state_of_the_ring(made, tmp_path):
    made.ok("object.builder", "set_overload", "10%")
    assert "Ring file object.ring.gz is up-to-date" in made.ok("object.builder")
    made.ok("object.builder", "set_weight", "d0", 10)
    assert "Ring file object.ring.gz is obsolete" in made.ok("object.builder")
    (tmp_path / "object.ring.gz").write_bytes(b"xx")
    assert "Ring file object.ring.gz is invalid: RingFileError(" in made.ok("object.builder")
    os.unlink("object.ring.gz")
    assert "Ring file object.ring.gz not found, probably it hasn't been written yet" in made.ok("object.builder")


def test_info_of_an_empty_ring(cli):
    cli.ok("x.builder", "create", 6, 3, 1)
    out = cli.ok("x.builder")
    assert ", 0 devices, 2-byte IDs, 0.00 balance" in out and "(0:00:00 remaining)" in out
    assert out.endswith("There are no devices in this ring, or all devices have been deleted\n")


def test_wide_addresses_widen_the_table(cli):
    cli.ok("x.builder", "create", 6, 3, 1)
    cli.ok("x.builder", "add", "r1z1-[fe80:1:2:3:4:5:6:7]:60000/sda", 1234567)
    head, row = cli.ok("x.builder").splitlines()[5:7]
    assert "[fe80:1:2:3:4:5:6:7]:60000" in row and "1234567.00" in row
    assert head.index(" name") == row.index("  sda") and head.index("partitions") + 10 == row.index("0 -100.00") + 1


# -- devices -----------------------------------------------------------------------------------------------------------


def test_add(cli):
    cli.ok("x.builder", "create", 6, 3, 1)
    out = cli.ok("x.builder", "add", "r1z1-127.0.0.1:6200/sda", 100, "z2-127.0.0.2:6200R10.0.0.2:6300/sdb_meta", 1.5)
    assert out == ('Device d0r1z1-127.0.0.1:6200R127.0.0.1:6200/sda_"" with 100.0 weight got id 0\n'
                   'Device d1r1z2-127.0.0.2:6200R10.0.0.2:6300/sdb_"meta" with 1.5 weight got id 1\n')
    assert cli.err == "WARNING: No region specified for z2-127.0.0.2:6200R10.0.0.2:6300/sdb_meta. Defaulting to region 1.\n"
    out = cli.ok("x.builder", "add", "-r", 2, "--zone", 1, "--ip", "Host.example", "-p6200", "--device=sdx", "--weight", 3,
                 "--meta", "hey")
    assert out == 'Device d2r2z1-host.example:6200Rhost.example:6200/sdx_"hey" with 3.0 weight got id 2\n'


@pytest.mark.parametrize(("args", "text"), [
    (["r1z1-127.0.0.1:6200/sda", 1], "Device 0 already uses 127.0.0.1:6200/sda."),
    (["r1z9-127.0.0.9:6200/a", 1, "r1z9-127.0.0.9:6200/a", 1], "Device 4 already uses 127.0.0.9:6200/a."),
    (["r1z1-127.0.0.1:6200/sdx", "-1"], "Invalid weight value: -1"),
    (["r1z1-127.0.0.1:6200/sdx", "abc"], "Invalid weight value: abc"),
    (["r1z1-127.0.0.1:6200/sdx", "nan"], "Invalid weight value: nan"),
    (["x", 1], "Invalid add value: x"), (["-r", 1, "-z", 1], "Required argument -i/--ip not specified."),
    (["-r", "x"], "Invalid value for --region"), (["-r", 1, "-z", 1, "-i", "1.1.1.1", "-p", 1, "-d", "a/b", "-w", 1], "a/b"),
])
def test_add_refuses_and_changes_nothing(made, args, text):
    before = RingBuilder.load("object.builder").version
    code, out = made("object.builder", "add", *args)
    assert code == 2 and text in out and out.endswith("The on-disk ring builder is unchanged.\n")
    assert RingBuilder.load("object.builder").version == before


@pytest.mark.parametrize("args", [[], ["r1z1-127.0.0.1:6200/sdx"], ["r1z1-127.0.0.1:6200/x", 1, "-r", 1], ["--bogus"]])
def test_add_shows_its_usage(made, args):
    code, out = made("object.builder", "add", *args)
    assert code == 2 and out.startswith(f"{PROGRAM} <builder_file> add [r<region>]z<zone>")


def test_search(made):
    out = made.ok("object.builder", "search", "z3")
    assert out.splitlines()[0] == ("Devices:    id  region  zone      ip address  port  replication ip  replication port"
                                   "      name weight partitions balance meta")
    assert out.splitlines()[1].startswith("             2       1     3       127.0.0.3  6200       127.0.0.3"
                                          "              6200       sdc  50.00 ")
    assert made.ok("object.builder", "search", "--zone", 3) == out
    assert len(made.ok("object.builder", "search", "-m", "x").splitlines()) == 2
    assert made("object.builder", "search", "d9") == (2, "No matching devices found\n")
    code, out = made("object.builder", "search", "xx")
    assert code == 2 and out.startswith("Invalid <search-value>: 'xx'")
    for args in ([], ["d0", "d1"], ["d0", "-r", 1]):
        code, out = made("object.builder", "search", *args)
        assert code == 2 and "search <search-value>" in out and "R:6210" in out


def test_list_parts(made, cli):
    out = made.ok("object.builder", "list_parts", "z3")
    assert out.splitlines()[0] == "Partition   Matches" and len(out.splitlines()) == 65
    assert re.fullmatch(r"        0         1", out.splitlines()[1])
    counts = [int(line.split()[1]) for line in made.ok("object.builder", "list_parts", "d0", "z3").splitlines()[1:]]
    assert counts == sorted(counts, reverse=True)
    assert made("object.builder", "list_parts", "d9") == (2, "No matching devices found\n")
    made.ok("new.builder", "create", 6, 3, 1)
    assert made("new.builder", "list_parts", "d0") == (
        2, 'Specified builder file "new.builder" is not rebalanced yet. Please rebalance first.\n')


def test_set_weight(made):
    assert made.ok("object.builder", "set_weight", "d0", 200, "d1", 150.5) == (
        'd0r1z1-127.0.0.1:6200R127.0.0.1:6200/sda_"" weight set to 200.0\n'
        'd1r1z2-127.0.0.2:6200R127.0.0.2:6200/sdb_"x" weight set to 150.5\n')
    assert made("object.builder", "set_weight", "d9", 1) == (
        2, "Search value matched 0 devices.\nThe on-disk ring builder is unchanged.\n")
    code, out = made("object.builder", "set_weight", "d0", "-4")
    assert code == 2 and "Invalid weight value: -4" in out
    for args in ([], ["d0"], ["--region", 1], ["d0", 5, "-r", 1]):
        code, out = made("object.builder", "set_weight", *args)
        assert code == 2 and "set_weight <search-value> <weight>" in out


def test_many_devices_are_asked_about(made):
    question = "Are you sure you want to update the weight for these 2 devices? (y/N) "
    listed = ('Matched more than one device:\n    d2r1z3-127.0.0.3:6200R127.0.0.3:6200/sdc_""\n'
              '    d3r1z3-127.0.0.3:6200R127.0.0.3:6200/sdd_""\n')
    for answer in ("n\n", "\n", ""):
        assert made("object.builder", "set_weight", "z3", 7, answer=answer) == (
            2, listed + question + "Aborting device modifications\n")
    assert RingBuilder.load("object.builder").device(2).weight == 50
    assert made.ok("object.builder", "set_weight", "z3", 7, answer="y\n").startswith(listed + question + "d2r1z3")
    out = made.ok("object.builder", "set_weight", "--zone", 3, 8, "--yes")
    assert out.startswith(listed + "d2r1z3") and question not in out
    assert RingBuilder.load("object.builder").device(3).weight == 8


def test_set_zone_and_region(made):
    assert made.ok("object.builder", "set_zone", "d0", 4) == (
        'd0r1z4-127.0.0.1:6200R127.0.0.1:6200/sda_"" zone set to 4\n')
    assert made.ok("object.builder", "set_region", "-u", 0, 2) == (
        'd0r2z4-127.0.0.1:6200R127.0.0.1:6200/sda_"" region set to 2\n')
    code, out = made("object.builder", "set_zone", "d0", "x")
    assert code == 2 and "'x'" in out


def test_set_info(made):
    assert made.ok("object.builder", "set_info", "d0", ":9999/ss", "d1", "_") == (
        'Device d0r1z1-127.0.0.1:6200R127.0.0.1:6200/sda_"" is now d0r1z1-127.0.0.1:9999R127.0.0.1:6200/ss_""\n'
        'Device d1r1z2-127.0.0.2:6200R127.0.0.2:6200/sdb_"x" is now d1r1z2-127.0.0.2:6200R127.0.0.2:6200/sdb_""\n')
    assert made("object.builder", "set_info", "d1", "127.0.0.1:9999/ss") == (
        2, "Device 0 already uses 127.0.0.1:9999/ss.\n")
    out = made.ok("object.builder", "set_info", "--id", 1, "--change-meta", "bla", "-Q", 7)
    assert out.endswith('is now d1r1z2-127.0.0.2:6200R127.0.0.2:7/sdb_"bla"\n')
    code, out = made("object.builder", "set_info", "d0", "zz")
    assert code == 2 and out.startswith("Invalid set info change value: 'zz'")
    for args in ([], ["d0"], ["--id", 1], ["--change-meta", "x"], ["d0", "_x", "--id", 1]):
        assert made("object.builder", "set_info", *args)[0] == 2


def test_remove(made):
    made.ok("object.builder", "add", "r1z4-127.0.0.4:6200/sda", 100)
    assert made.ok("object.builder", "remove", "d0") == (
        'd0r1z1-127.0.0.1:6200R127.0.0.1:6200/sda_"" marked for removal and will be removed next rebalance.\n')
    assert made("object.builder", "remove", "z3", answer="n\n")[1].endswith(
        "Are you sure you want to remove these 2 devices? (y/N) Aborting device removals\n")
    assert made("object.builder", "set_weight", "d0", 4) == (
        2, "Can not set weight of dev_id 0 because it is marked for removal\n")
    assert re.search(r" 0 +1 +1 .* DEL $", made.ok("object.builder"), re.MULTILINE)
    made.ok("object.builder", "remove", "-d", "sdd", "--yes")
    code, out = made("object.builder", "rebalance", "--format-version", 2)
    assert code in (0, 1) and out.startswith("Reassigned ")
    assert RingBuilder.load("object.builder").devices[0] is None


# -- rebalance ---------------------------------------------------------------------------------------------------------


def test_rebalance_writes_ring_builder_and_backups(cli):
    cli.ok("x.builder", "create", 6, 3, 1)
    cli.ok("x.builder", "add", *(arg for z in (1, 2, 3) for arg in (f"r1z{z}-127.0.0.{z}:6200/a", 100)))
    code, out = cli("x.builder", "rebalance")
    assert code == 0 and out.startswith("Defaulting to --format-version=1.") and out.endswith(
        "\n\nReassigned 192 (300.00%) partitions. Balance is now 0.00.  Dispersion is now 0.00\n")
    assert ring_format.load("x.ring.gz").format_version == 1
    names = sorted(name.partition(".")[2] for name in os.listdir("backups"))
    assert names.count("x.ring.gz") == 1 and "x.builder" in names
    assert cli.ok("x.ring.gz", "version") == "x.ring.gz: Serialization version: 1 (2-byte IDs), build version: 4\n"
    code, out = cli("x.builder", "rebalance", "--format-version", 2)
    assert code == 1 and re.fullmatch(
        r"No partitions could be reassigned.\nThe time between rebalances must be at least min_part_hours: 1 hours "
        r"\(0:59:5\d remaining\)\n|.*1:00:00 remaining\)\n", out, re.DOTALL)
    cli.ok("x.builder", "pretend_min_part_hours_passed")
    assert cli("x.builder", "rebalance", "--format-version", 2) == (
        1, "No partitions could be reassigned.\nThere is no need to do so at this time\n")
    assert ring_format.load("x.ring.gz").format_version == 1
    cli.ok("x.builder", "rebalance", "--force", "--format-version", 2)
    assert ring_format.load("x.ring.gz").format_version == 2


def test_rebalance_notes_bad_balance_and_bad_dispersion(cli):
    cli.ok("x.builder", "create", 6, 3, 1)
    cli.ok("x.builder", "add", *(arg for z, w in ((1, 100), (2, 100), (3, 20)) for arg in (f"r1z{z}-127.0.0.{z}:6200/a", w)))
    code, out = cli("x.builder", "rebalance", "5", "--format-version", 1)
    assert code == 1 and "\nNOTE: Balance of " in out and "indicates you should push this\n" in out
    cli.ok("x.builder", "add", "r1z1-127.0.0.1:6200/b", 100)
    cli.ok("x.builder", "pretend_min_part_hours_passed")
    code, out = cli("x.builder", "rebalance", "--format-version", 1)
    assert code == 1 and "\nNOTE: Dispersion of " in out and "indicates some parts are not\n" in out
    assert out.count("-" * 79) == 2


def test_rebalance_that_hardly_helps_is_not_saved(cli):
    built = rebalanced(cluster(), part_power=10)
    part = next(part for part in range(1024) if 0 in built._table[:, part] and 1 not in built._table[:, part])
    built._table[list(built._table[:, part]).index(0), part] = 1  # one of 256: the balance gets 0.39 % worse
    built.pretend_min_part_hours_passed()
    built.save("x.builder")
    assert cli("x.builder", "rebalance", "--format-version", 1) == (
        1, "Cowardly refusing to save rebalance as it did not change at least 1%.\n")
    assert not os.path.exists("x.ring.gz")
    assert cli.ok("x.builder", "rebalance", "--format-version", 1, "--force").startswith("Reassigned 1 (0.10%) partitions.")


def test_rebalance_errors(cli):
    cli.ok("x.builder", "create", 6, 3, 1)
    code, out = cli("x.builder", "rebalance", "--format-version", 1)
    assert code == 2 and out.splitlines()[0] == "-" * 79 == out.splitlines()[-1]
    assert "Original exception message:\n There are no devices in this ring, or all devices have been deleted\n" in out
    cli.ok("x.builder", "add", "r1z1-127.0.0.1:6200/b", 100)
    assert "\n Replica count of 3.0 requires more than 1 devices\n" in cli("x.builder", "rebalance")[1]
    for args in (["--bogus"], ["--seed"], ["1", "2"], ["--format-version", 3]):
        code, out = cli("x.builder", "rebalance", *args)
        assert code == 2 and f"{PROGRAM} <builder_file> rebalance" in out
    assert not os.path.exists("x.ring.gz")


def test_the_seed_decides(made):
    tables = []
    for args in (["--seed", "abc"], ["abc"], ["-s", "xyz"]):
        made.ok("y.builder", "create", 6, 2, 1)
        made.ok("y.builder", "add", *(arg for z in range(4) for arg in (f"r1z{z}-127.0.0.{z}:6200/a", 100)))
        made.ok("y.builder", "rebalance", *args)
        tables.append([list(row) for row in ring_format.load("y.ring.gz").rows])
    assert tables[0] == tables[1] != tables[2]


def test_debug_tells_the_steps(made):
    made.ok("object.builder", "pretend_min_part_hours_passed")
    made("object.builder", "rebalance", "--debug", "--force", "--format-version", 1)
    assert " s  levelling devices\n" in made.err


def test_dispersion(made):
    out = made.ok("object.builder", "dispersion")
    assert re.fullmatch(r"Dispersion is 0.000000, Balance is [\d.]+, Overload is 0.00%\nRequired overload is [\d.]+%\n", out)
    lines = made.ok("object.builder", "dispersion", "-v", r"r\d+z\d+$").splitlines()
    assert lines[3] == "Tier                           Parts      %    Max     0     1     2     3"
    assert lines[2] == lines[4] == "-" * 74
    assert lines[5:] == [f"r1z{z}                              64   0.00      1     0    64     0     0" for z in (1, 2, 3)]
    version = RingBuilder.load("object.builder").version
    made.ok("object.builder", "dispersion", "--recalculate")
    assert RingBuilder.load("object.builder").version == version + 1
    assert made("object.builder", "dispersion", "(")[0] == 2


def test_bad_dispersion_is_exit_1(made):
    made.ok("object.builder", "set_zone", "d2", 1)
    code, out = made("object.builder", "dispersion", "--recalculate")
    assert code == 1 and re.search(r"Worst tier is \d+\.\d{6} \(r1z1\)\n", out)


def test_validate(made):
    assert made("object.builder", "validate") == (0, "")
    made.ok("x.builder", "create", 6, 3, 1)
    assert made("x.builder", "validate") == (2, "_replica2part2dev empty; did you forget to rebalance?\n")


# -- files -------------------------------------------------------------------------------------------------------------


def test_write_ring(made):
    os.unlink("object.ring.gz")
    assert made.ok("object.builder", "write_ring", "--format-version", 2, "--dev-id-bytes", 4) == ""
    assert made.ok("object.ring.gz", "version").startswith("object.ring.gz: Serialization version: 2 (4-byte IDs), build")
    assert made("object.builder", "write_ring", "--format-version", 1, "--dev-id-bytes", 4) == (
        2, "Ring v1 only supports 2-byte dev IDs\n")
    assert made("object.builder", "write_ring", "x")[0] == 2
    made.ok("x.builder", "create", 6, 3, 1)
    assert made("x.builder", "write_ring", "--format-version", 1) == (2, "Unable to write empty ring.\n")
    made.ok("x.builder", "add", "r1z1-127.0.0.1:6200/b", 100)
    made.ok("x.builder", "write_ring", "--format-version", 1)
    assert "WARNING: Writing a ring with no partition assignments" in made.err


def test_write_builder(made):
    assert made("object.ring.gz", "write_builder") == (
        2, "Cowardly refusing to overwrite existing Ring Builder file: object.builder\n")
    old = RingBuilder.load("object.builder")
    os.unlink("object.builder")
    made.ok("object.ring.gz", "write_builder", 5)
    new = RingBuilder.load("object.builder")
    assert new.table is not None and old.table is not None and (new.table == old.table).all()
    assert new.min_part_hours == 5 and new.version == old.version
    os.unlink("object.builder")
    made.ok("object.ring.gz", "write_builder")
    assert "WARNING: default min_part_hours may not match the value in the lost builder." in made.err
    assert RingBuilder.load("object.builder").min_part_hours == 24
    assert made("none.ring.gz", "write_builder") == (2, "Ring file does not exist: none.ring.gz\n")


def test_version_of_what_is_no_ring(cli, tmp_path):
    assert cli("x.ring.gz", "version") == (2, "Ring file does not exist: x.ring.gz\n")
    (tmp_path / "x.ring.gz").write_bytes(b"junk")
    code, out = cli("x.ring.gz", "version")
    assert code == 2 and out.startswith("x.ring.gz: is not a gzip file")


def test_plain_settings(made):
    assert made.ok("object.builder", "set_min_part_hours", 4) == (
        "The minimum number of hours before a partition can be reassigned is now set to 4\n")
    assert made.ok("object.builder", "set_replicas", 2.5) == (
        "The replica count is now 2.500000.\nThe change will take effect after the next rebalance.\n")
    assert made.ok("object.builder", "set_overload", "10%") == (
        "The overload factor is now 10.00% (0.100000)\nThe change will take effect after the next rebalance.\n")
    assert made("object.builder", "set_overload", 10) == (
        1, "!?! Warning overload is greater than 100% !?!\nThe overload factor is now 1000.00% (10.000000)\n"
        "The change will take effect after the next rebalance.\n")
    assert made("object.builder", "set_overload", -1) == (2, "Overload must be non-negative.\n")
    assert made("object.builder", "set_replicas", 0.3) == (2, "Replica count must be at least 1.\n")
    for command in ("set_min_part_hours", "set_replicas", "set_overload"):
        for args in ([], ["x"], ["1", "2"]):
            assert made("object.builder", command, *args)[0] == 2
    assert made("object.builder", "set_min_part_hours", "-4")[0] == 2
    built = RingBuilder.load("object.builder")
    assert (built.min_part_hours, built.replicas, built.overload) == (4, 2.5, 10.0)


def test_part_power_increase(made):
    def shown():
        return made.ok("object.builder")

    for command, text in (("increase", "Ring partition power cannot be increased."),
                          ("cancel_increase", "Ring partition power increase cannot be canceled."),
                          ("finish_increase", "Ring partition power increase cannot be finished.")):
        code, out = made("object.builder", f"{command}_partition_power")
        assert code == 2 and out.startswith(text)
    assert made.ok("object.builder", "prepare_increase_partition_power").startswith("The next partition power is now 7.\n")
    assert made("object.builder", "prepare_increase_partition_power") == (
        2, "Ring is already prepared for partition power increase.\n")
    assert "\nPreparing increase of partition power (6 -> 7)\n" in shown()
    for args in (["rebalance"], ["add", "r1z1-127.0.0.1:6200/z", 1], ["remove", "d0"]):
        code, out = made("object.builder", *args)
        assert code == 2 and "Partition power increase in progress." in out
    made.ok("object.builder", "set_weight", "d0", 10)
    assert made.ok("object.builder", "cancel_increase_partition_power").startswith("The next partition power is now 6.\n")
    assert "\nIncreased partition power (6 -> 6)\n" in shown()
    made.ok("object.builder", "finish_increase_partition_power")
    made.ok("object.builder", "prepare_increase_partition_power")
    assert made.ok("object.builder", "increase_partition_power") == (
        "The partition power is now 7.\nThe change will take effect after the next write_ring.\n")
    made.ok("object.builder", "write_ring", "--format-version", 1)
    ring = ring_format.load("object.ring.gz")
    assert (ring.part_power, ring.next_part_power) == (7, 7)
    made.ok("object.builder", "finish_increase_partition_power")
    assert "partition power (" not in shown() and "\n128 partitions" in shown()
    os.rename("object.builder", "container.builder")
    assert made("container.builder", "prepare_increase_partition_power") == (
        2, "Partition power increase is only supported for object rings.\n")


def test_safe_waits_for_the_lock_of_the_directory(made, monkeypatch):
    monkeypatch.setattr(ring_builder, "LOCK_S", 0.05)
    assert made("object.builder", "validate", program="keelstore-ring-builder-safe")[0] == 0
    held, done = threading.Event(), threading.Event()

    def hold():
        with lock_directory(os.getcwd(), 1):
            held.set()
            done.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        assert made("object.builder", "validate", program="keelstore-ring-builder-safe") == (
            2, "Ring/builder dir currently locked.\n")
    finally:
        done.set()
        holder.join()


def test_nothing_but_a_message_when_files_cannot_be_written(made, monkeypatch):
    def fail(*args, **more):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(fs, "replace_file", fail)
    code, out = made("object.builder", "set_overload", 0.1)
    assert code == 2 and "object.builder: cannot be written" in out and "No space left" in out


def test_a_reader_that_goes_away_is_no_error(made, tmp_path):
    script = "import sys; from keelstore.cli.ring_builder import main; sys.exit(main(['x', *sys.argv[1:]]))"
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    run = subprocess.run(f"{sys.executable} -c \"{script}\" object.builder list_parts d0 | true", shell=True, check=False,
                         cwd=tmp_path, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True)
    assert run.stderr == ""
