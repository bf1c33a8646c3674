// Drives AWS's SDK for JavaScript, version 3: `node s3_sdk.mjs BUCKET`, endpoint, region and keys in the environment as that SDK reads them.
import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { Readable } from "node:stream";
import * as s3 from "@aws-sdk/client-s3";
import { Upload } from "@aws-sdk/lib-storage";
import { getSignedUrl } from "@aws-sdk/s3-request-presigner";

const [Bucket] = process.argv.slice(2);
const client = new s3.S3Client({});
const send = (name, input = {}) => client.send(new s3[`${name}Command`]({ Bucket, ...input }));
const bytes = async (name, input = {}) => Buffer.from(await (await send("GetObject", { Key: name, ...input })).Body.transformToByteArray());
const refused = async (name, input, code) => assert.rejects(send(name, input), (error) => assert.equal(error.name, code) === undefined);

await send("CreateBucket");
await send("HeadBucket");
assert((await client.send(new s3.ListBucketsCommand({}))).Buckets.some((entry) => entry.Name === Bucket));

const keys = ["a b+c%é", "x//y", "../z", "sub/#?&", "日本"];
for (const Key of keys) {
  const put = await send("PutObject", { Key, Body: Key, ContentType: "text/x", Metadata: { colour: "blue" } });
  assert(put.ChecksumCRC32, "the checksum that it sends by default comes back");
  assert.equal((await bytes(Key)).toString(), Key);
  const head = await send("HeadObject", { Key, ChecksumMode: "ENABLED" });
  assert.deepEqual([head.ContentLength, head.ContentType, head.Metadata, head.ChecksumCRC32], [Buffer.byteLength(Key), "text/x", { colour: "blue" }, put.ChecksumCRC32]);
}
const pages = [];
for await (const page of s3.paginateListObjectsV2({ client, pageSize: 2 }, { Bucket })) pages.push(...page.Contents.map((entry) => entry.Key));
assert.deepEqual(pages.toSorted(), keys.toSorted());
assert.equal((await send("ListObjectsV2", { Delimiter: "/", MaxKeys: 1000 })).CommonPrefixes.length, 3);
for (const ChecksumAlgorithm of ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
  assert((await send("PutObject", { Key: "sums", Body: "x", ChecksumAlgorithm }))[`Checksum${ChecksumAlgorithm}`], ChecksumAlgorithm);

const big = randomBytes((12 << 20) + 7);
const pieces = function* () { for (let at = 0; at < big.length; at += 1 << 20) yield big.subarray(at, at + (1 << 20)); };
const done = await new Upload({ client, params: { Bucket, Key: "big", Body: Readable.from(pieces()) } }).done(); // of unknown length
assert.match(done.ETag, /-3"$/);
assert((await bytes("big")).equals(big));
assert((await bytes("big", { Range: "bytes=100-199" })).equals(big.subarray(100, 200)));
assert((await send("GetObject", { Key: "big", PartNumber: 3 })).PartsCount === 3);
await send("PutObject", { Key: "stream", Body: Readable.from(pieces()), ContentLength: big.length });
assert((await bytes("stream")).equals(big));
await send("CopyObject", { Key: "copied", CopySource: `${Bucket}/${encodeURIComponent(keys[0])}` });
assert.equal((await bytes("copied")).toString(), keys[0]);
assert.equal((await send("GetObjectAttributes", { Key: "big", ObjectAttributes: ["ObjectParts", "ObjectSize"] })).ObjectSize, big.length);

await refused("GetObject", { Key: "none" }, "NoSuchKey");
await refused("HeadObject", { Key: "none" }, "NotFound");
await refused("PutObject", { Key: "copied", Body: "x", IfNoneMatch: "*" }, "PreconditionFailed");
await refused("GetBucketPolicy", {}, "NoSuchBucketPolicy");
await send("PutObjectTagging", { Key: "copied", Tagging: { TagSet: [{ Key: "a", Value: "b" }] } });
assert.deepEqual((await send("GetObjectTagging", { Key: "copied" })).TagSet, [{ Key: "a", Value: "b" }]);
await send("PutBucketCors", { CORSConfiguration: { CORSRules: [{ AllowedOrigins: ["*"], AllowedMethods: ["PUT"], ExposeHeaders: ["ETag"], AllowedHeaders: ["*"] }] } });

// A browser with a signed URL, whose query holds the checksum of no body at all.
const url = await getSignedUrl(client, new s3.PutObjectCommand({ Bucket, Key: "signed" }), { expiresIn: 600 });
const asked = await fetch(url, { method: "OPTIONS", headers: { Origin: "http://a", "Access-Control-Request-Method": "PUT" } });
assert.equal(asked.status, 200);
assert.equal((await fetch(url, { method: "PUT", body: "by a browser" })).status, 200);
const read = await getSignedUrl(client, new s3.GetObjectCommand({ Bucket, Key: "signed", ResponseContentType: "text/y" }), { expiresIn: 600 });
const answer = await fetch(read);
assert.deepEqual([await answer.text(), answer.headers.get("content-type")], ["by a browser", "text/y"]);

await send("PutBucketVersioning", { VersioningConfiguration: { Status: "Enabled" } });
const second = await send("PutObject", { Key: "signed", Body: "second" });
assert.equal((await send("DeleteObject", { Key: "signed" })).DeleteMarker, true);
assert.equal((await bytes("signed", { VersionId: second.VersionId })).toString(), "second");
const all = await send("ListObjectVersions");
assert.equal(all.DeleteMarkers.length, 1);
const Objects = [...all.Versions, ...all.DeleteMarkers].map(({ Key, VersionId }) => ({ Key, VersionId }));
assert.equal((await send("DeleteObjects", { Delete: { Objects } })).Deleted.length, Objects.length);
assert.equal((await send("ListObjectsV2")).Contents, undefined);
await send("DeleteBucket");
await s3.waitUntilBucketNotExists({ client, maxWaitTime: 30 }, { Bucket });
