import os

import pytest

from keelstore.common.sync_realms import FILE_NAME, Realms, parse_realms

TEXT = "[Realm1]\nkey = k1\nkey2 = k%2\ncluster_one = https://one/v1/\nCLUSTER_Two = http://two/v1/\n[bare]\n"


def test_realms_are_read_without_regard_to_case():
    realms = parse_realms(TEXT)
    assert set(realms) == {"REALM1", "BARE"} and realms["REALM1"].clusters == {"ONE": "https://one/v1/", "TWO": "http://two/v1/"}
    assert (realms["REALM1"].key, realms["REALM1"].key2, realms["BARE"].key) == ("k1", "k%2", "")
    assert "k1" not in repr(realms)


@pytest.mark.parametrize("text", ["key = x\n", "[a]\n[a]\n", "[a\n"])
def test_what_is_no_file_of_realms(text):
    with pytest.raises(ValueError):
        parse_realms(text)


def test_the_file_is_read_again_when_it_changes(tmp_path):
    now = [0.0]
    problems: list[str] = []
    realms = Realms(str(tmp_path), 300, problems.append, lambda: now[0])
    assert realms.current() == {}
    path = tmp_path / FILE_NAME
    path.write_text(TEXT)
    assert realms.current() == {}
    now[0] = 300
    assert set(realms.current()) == {"REALM1", "BARE"}
    path.write_text("broken")
    os.utime(path, ns=(1, 1))
    now[0] = 600
    assert set(realms.current()) == {"REALM1", "BARE"} and len(problems) == 1
    path.unlink()
    now[0] = 900
    assert realms.current() == {}
