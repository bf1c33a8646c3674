import json

import pytest

from keelstore.cli import ring_composer
from keelstore.common.ring import format as ring_format
from test.unit.common.ring.support import HOUR, device, rebalanced


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for region in (1, 2):
        rebalanced([device(region, zone) for zone in (1, 2, 3)], 6, 2.0).save(f"r{region}.builder")

    def call(*args):
        code = ring_composer.main(["keelstore-ring-composer", *args])
        out, err = capsys.readouterr()
        assert err.startswith("\nNOTE: This tool is for experimental use")
        return code, out, err
    return call


def test_compose_then_show(run):
    assert run("all.json", "compose", "r1.builder", "r2.builder", "--output", "object.ring.gz")[:2] == (0, "")
    ring = ring_format.load("object.ring.gz")
    assert ring.replica_count == 4 and len(ring.devices) == 6
    code, out, _ = run("all.json", "show")
    shown = json.loads(out)
    assert code == 0 and list(shown) == ["component_builder_files", "components", "version"] and shown["version"] == 1


def test_compose_again(run):
    from keelstore.common.ring.builder import RingBuilder
    run("all.json", "compose", "r1.builder", "r2.builder", "--output", "object.ring.gz")
    code, _, err = run("all.json", "compose", "--output", "object.ring.gz")
    assert code == 2 and err.endswith(
        "An error occurred while composing the ring.\nOriginal exception message:\n"
        "None of the component builders has been modified since the existing composite ring was built.\n")
    assert run("all.json", "compose", "--output", "object.ring.gz", "--force")[0] == 0
    built = RingBuilder.load("r1.builder")
    built.set_weight(0, 50)
    built.rebalance(2000 * HOUR, 1)
    built.save("r1.builder")
    assert run("all.json", "compose", "--output", "object.ring.gz")[0] == 0
    assert json.loads(run("all.json", "show")[1])["version"] == 3


@pytest.mark.parametrize("args", [[], ["all.json"], ["all.json", "bogus"], ["all.json", "compose", "r1.builder"]])
def test_usage(run, args):
    code, _, err = run(*args)
    assert code == 2 and "usage: keelstore-ring-composer" in err


def test_errors_are_clear(run, tmp_path):
    assert "cannot be read: No such file" in run("all.json", "show")[2]
    (tmp_path / "bad.json").write_text("{")
    assert run("bad.json", "show")[0] == 2
    for builders, text in ((["r1.builder"], "Two or more"), (["r1.builder", "no"], "does not exist"),
                           (["r1.builder", "r1.builder"], "used at indexes 0, 1"), (["r1.builder", "bad.json"], "invalid")):
        code, _, err = run("all.json", "compose", *builders, "--output", "x.ring.gz")
        assert code == 2 and text in err and "Traceback" not in err
    code, _, err = run("all.json", "compose", "r1.builder", "r2.builder", "--output", "no/x.ring.gz")
    assert code == 2 and "while writing the composite ring file" in err
    assert not (tmp_path / "all.json").exists()
