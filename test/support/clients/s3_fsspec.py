"""Drives s3fs, and so fsspec, against the store: ``python s3_fsspec.py BUCKET DIRECTORY``, endpoint and keys in the environment as AWS's libraries read them."""

import os
import sys

import fsspec
import s3fs

bucket, home = sys.argv[1:]
fs = s3fs.S3FileSystem()
assert not fs.exists(bucket)
fs.mkdir(bucket)
assert bucket in fs.ls("")

big = os.urandom((11 << 20) + 5)
with fs.open(f"{bucket}/dir/big é", "wb", block_size=5 << 20) as file:  # three parts, as they are written
    for start in range(0, len(big), 1 << 20):
        file.write(big[start : start + (1 << 20)])
with fs.open(f"{bucket}/dir/big é", "rb", block_size=1 << 20) as file:
    file.seek(-5, 2)
    assert file.read() == big[-5:]
    file.seek(3 << 20)
    assert file.read(100) == big[3 << 20 : (3 << 20) + 100]
fs.pipe({f"{bucket}/dir/{number}": b"%d" % number for number in range(20)})
assert fs.cat(f"{bucket}/dir/*[0-9]")[f"{bucket}/dir/7"] == b"7"
assert fs.cat_ranges([f"{bucket}/dir/big é"] * 2, [0, 10], [5, 20]) == [big[:5], big[10:20]]
assert len(fs.find(bucket)) == 21 and fs.glob(f"{bucket}/**/big*") == [f"{bucket}/dir/big é"] and fs.du(bucket) == len(big) + 30
info = fs.info(f"{bucket}/dir/big é")
assert (info["size"], info["type"]) == (len(big), "file") and fs.isdir(f"{bucket}/dir") and not fs.exists(f"{bucket}/none")

with fs.open(f"{bucket}/dir/1", "ab") as file:
    file.write(b" more")
fs.invalidate_cache()
assert fs.cat(f"{bucket}/dir/1") == b"1 more"
fs.touch(f"{bucket}/empty")
assert fs.size(f"{bucket}/empty") == 0
fs.copy(f"{bucket}/dir/big é", f"{bucket}/copied")
assert fs.checksum(f"{bucket}/copied") and fs.cat(f"{bucket}/copied") == big
fs.mv(f"{bucket}/dir/1", f"{bucket}/moved")
assert fs.exists(f"{bucket}/moved") and not fs.exists(f"{bucket}/dir/1")
fs.setxattr(f"{bucket}/moved", colour="blue")
assert fs.getxattr(f"{bucket}/moved", "colour") == "blue" and fs.metadata(f"{bucket}/moved") == {"colour": "blue"}
fs.put_tags(f"{bucket}/moved", {"a": "b"})
assert fs.get_tags(f"{bucket}/moved") == {"a": "b"}
fs.chmod(f"{bucket}/moved", "public-read")
with fsspec.open(fs.sign(f"{bucket}/dir/big é"), "rb") as file:  # by HTTP, as anybody
    assert file.read() == big

fs.put(home, f"{bucket}/up", recursive=True)
fs.get(f"{bucket}/up", f"{home}-down", recursive=True)
for name in os.listdir(home):
    with open(f"{home}/{name}", "rb") as one, open(f"{home}-down/{name}", "rb") as two:
        assert one.read() == two.read()
fs.make_bucket_versioned(bucket, True)
fs.pipe(f"{bucket}/moved", b"newer")
older = s3fs.S3FileSystem(version_aware=True)
versions = older.object_version_info(f"{bucket}/moved")
assert len(versions) == 2 and older.open(f"{bucket}/moved", version_id=versions[-1]["VersionId"]).read() == b"1 more"

fs.rm(f"{bucket}/dir", recursive=True)
fs.invalidate_cache()
assert not fs.exists(f"{bucket}/dir/2") and sorted(fs.ls(bucket)) == sorted(f"{bucket}/{name}" for name in ("copied", "empty", "moved", "up"))
