import pytest

from keelstore.common.devices import check_device, is_device_name, is_mounted
from keelstore.common.errors import DeviceUnavailable


@pytest.mark.parametrize("name", ["d1", "sda1", "disk-1_a.b~c", "x" * 255])
def test_device_names_that_are_fine(name):
    assert is_device_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../etc", "/etc", "a\x00b", "x" * 256, "a b", "a%2fb", "ä", "a+b", "\udc80"]
)
def test_device_names_that_are_refused(name, tmp_path):
    assert not is_device_name(name)
    with pytest.raises(DeviceUnavailable):
        check_device(str(tmp_path), name, False)


def test_device_must_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "dir")
    assert check_device(str(tmp_path), "dir", False) == f"{tmp_path}/dir"
    assert check_device(str(tmp_path), "link", False) == f"{tmp_path}/link"
    for name in ("file", "absent"):
        with pytest.raises(DeviceUnavailable):
            check_device(str(tmp_path), name, False)


def test_mount_check_wants_a_mount_point_or_its_stand_in(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "dir")
    for name in ("dir", "link"):
        with pytest.raises(DeviceUnavailable):
            check_device(str(tmp_path), name, True)
    (tmp_path / "dir" / ".ismount").mkdir()
    assert not is_mounted(f"{tmp_path}/dir")
    (tmp_path / "dir" / ".ismount").rmdir()
    (tmp_path / "dir" / ".ismount").write_text("")
    for name in ("dir", "link"):
        assert check_device(str(tmp_path), name, True) == f"{tmp_path}/{name}"
    assert is_mounted("/proc") and is_mounted("/")
