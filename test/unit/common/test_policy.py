import pytest

from keelstore.common.cluster import load_cluster
from keelstore.common.errors import ConfigError
from keelstore.common.policy import Policies, ReplicationPolicy, datadir, policy_from

HASH = "[swift-hash]\nswift_hash_path_suffix = s\n"
EC = "policy_type = erasure_coding\nec_type = isa_l_rs_vand\nec_num_data_fragments = 4\nec_num_parity_fragments = 2\n"


def cluster(tmp_path, text, name="keelstore.conf"):
    (tmp_path / name).write_text(text)
    return load_cluster(str(tmp_path))


def test_without_sections_there_is_one_policy(tmp_path):
    found = cluster(tmp_path, HASH)
    assert [policy.name for policy in found.policies] == ["Policy-0"] and found.policies.default.index == 0


def test_policies_are_found_by_index_and_any_name(tmp_path):
    found = cluster(tmp_path, HASH + "[storage-policy:0]\nname = gold\naliases = yellow, best\ndefault = yes\n"
                    "[storage-policy:2]\nname = ec42\n" + EC, "swift.conf").policies
    assert found.by_name("GOLD") is found.by_name("Best") is found.get("0") is found.get(None)
    ec = found.get(2)
    assert ec.expected_replicas() == 6 and ec.write_quorum(6) == 5 and ec.ring_name == "object-2"
    assert found.get(1) is None and found.get("x") is None and found.by_name("x") is None


@pytest.mark.parametrize(
    "text",
    [
        "[storage-policy:1]\nname = a\ndefault = yes\n",
        "[storage-policy:0]\nname = a\n[storage-policy:1]\nname = b\n",
        "[storage-policy:0]\nname = a\ndefault = yes\n[storage-policy:1]\nname = A\n",
        "[storage-policy:0]\nname = a\ndefault = yes\n[storage-policy:1]\nname = Policy-0\n",
        "[storage-policy:0]\nname = a\ndefault = yes\ndeprecated = yes\n",
        "[storage-policy:0]\nname = a b\n",
        "[storage-policy:0]\nname = a\ncolour = red\n",
        "[storage-policy:x]\nname = a\n",
        "[storage-policy:0]\nname = a\npolicy_type = magic\n",
        "[storage-policy:0]\nname = a\npolicy_type = erasure_coding\n",
        "[storage-policy:0]\nname = a\n" + EC.replace("= 2", "= 5"),
    ],
)
def test_a_bad_policy_is_refused_with_the_file_named(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        cluster(tmp_path, HASH + text)
    assert str(tmp_path) in str(caught.value)


def test_a_cluster_needs_a_file_and_a_hash_secret(tmp_path):
    with pytest.raises(ConfigError, match=r"no keelstore.conf or swift.conf"):
        load_cluster(str(tmp_path))
    with pytest.raises(ConfigError, match="both swift_hash_path_suffix and swift_hash_path_prefix are missing"):
        cluster(tmp_path, "[swift-hash]\n")


def test_limits_are_read_and_checked(tmp_path):
    assert cluster(tmp_path, HASH + "[swift-constraints]\nmax_meta_count = 5\n").limits.max_header_count == 41
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ConfigError, match="max_meta_count"):
        cluster(other, HASH + "[swift-constraints]\nmax_meta_count = many\n")


def test_directories_carry_the_index_but_for_policy_0():
    assert datadir("objects", 0) == "objects" and datadir("objects", 3) == "objects-3"


def test_duplicate_indexes_are_refused():
    with pytest.raises(ConfigError):
        Policies.of([ReplicationPolicy(0, "a", is_default=True), ReplicationPolicy(0, "b")])


def test_an_option_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="ec_type"):
        policy_from(0, {"name": "a", "ec_type": "x"})
