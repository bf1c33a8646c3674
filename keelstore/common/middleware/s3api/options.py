"""What an operator decides about S3 (``spec: s3-api 5.1``)."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.options import not_negative, option, positive, unused


@dataclass(frozen=True)
class S3ApiOptions:
    """Options of ``[filter:s3api]``."""

    location: str = option("us-east-1", "Region of all buckets; signatures are made for it.")
    extra_regions: tuple[str, ...] = option(
        ("us-east-1", "auto", "default"), "Regions that signatures may be made for too; * for any."
    )
    storage_domain: tuple[str, ...] = option((), "Domains below which the first label of a host name is the bucket.")
    dns_compliant_bucket_names: bool = option(True, "Allow only bucket names that are host names.")
    s3_acl: bool = option(False, "Decide by the ACLs of S3 instead of those of Swift's containers.")
    allow_no_owner: bool = option(False, "With s3_acl: what has no owner is for everybody, instead of for nobody.")
    check_bucket_owner: bool = option(False, "With s3_acl: list only buckets that the user owns.")
    bucket_index: bool = option(
        True, "With s3_acl: bucket names are unique in the cluster, so that users find each other's buckets."
    )
    max_bucket_listing: int = option(1000, "Keys of one listing at most.", check=positive)
    max_parts_listing: int = option(1000, "Parts of one listing at most.", check=positive)
    max_multi_delete_objects: int = option(1000, "Objects of one DeleteObjects at most.", check=positive)
    multi_delete_concurrency: int = option(2, "Objects that one DeleteObjects deletes at once.", check=positive)
    max_upload_part_num: int = option(10000, "The highest number of a part.", check=positive)
    min_segment_size: int = option(5 << 20, "Bytes of every part but the last at least.", check=positive)
    allow_multipart_uploads: bool = option(True, "Take uploads in parts; needs slo.")
    allow_signature_v2: bool = option(True, "Take signatures of version 2.")
    allowable_clock_skew: int = option(900, "Seconds that a request's time may differ from ours.", check=not_negative)
    cors_preflight_allow_origin: tuple[str, ...] = option(
        (), "Origins that preflights are allowed for where no bucket says it; * for any."
    )
    ratelimit_as_client_error: bool = option(False, "Answer 429 instead of 503 to who comes too fast.")
    auth_pipeline_check: bool = unused(
        True, "the order of the filters is checked at every start, and without an auth filter S3 requests are refused."
    )
    force_swift_request_proxy_log: bool = option(False, "Log the Swift requests that an S3 request becomes, too.")
