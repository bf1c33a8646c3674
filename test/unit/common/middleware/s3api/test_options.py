"""The section of s3api: what is wrong in it is told."""

import logging

import pytest

from keelstore.common.errors import ConfigError
from keelstore.common.middleware.s3api import filter_factory


def test_an_unknown_option_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "keelstore.config"):
        filter_factory({"unknown_default": "x"}, use="egg:keelstore#s3api", locaton="x", log_name="s3", location="x")
    assert [record.getMessage() for record in caplog.records] == [
        "configuration [filter:s3api]: unknown option locaton (did you mean location?)"]


def test_a_bad_value_names_its_section() -> None:
    with pytest.raises(ConfigError, match="filter:s3api"):
        filter_factory({}, max_upload_part_num="0")
