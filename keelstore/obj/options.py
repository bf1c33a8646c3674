"""Options of the object server and of the daemons of objects (``spec: daemons 11, 13 to 16``)."""

from __future__ import annotations

from dataclasses import dataclass

from keelstore.common.daemon_frame import DaemonOptions
from keelstore.common.options import count_of_nodes, not_negative, one_of, option, percent, positive, unused
from keelstore.common.storage_server import StorageServerOptions

DEFAULT_ALLOWED_HEADERS = (
    "Content-Disposition", "Content-Encoding", "X-Delete-At", "X-Object-Manifest", "X-Static-Large-Object",
    "Cache-Control", "Content-Language", "Expires", "X-Robots-Tag",
)  # fmt: skip


def _auto_or_number(value: str) -> str | None:
    return None if value == "auto" or (value.isdigit() and int(value) > 0) else "auto, or a number above 0"


def _sizes(values: tuple[str, ...]) -> str | None:
    return None if all(value.isdigit() for value in values) else "numbers of bytes"


def _share(value: float) -> str | None:
    return None if 0 < value <= 1 else "a share above 0, up to 1"


@dataclass(frozen=True)
class ObjectServerOptions(StorageServerOptions):
    """Options of ``[app:object-server]``."""

    container_update_timeout: float = option(
        1.0, "Seconds that a request waits for container updates; what is not done then is left to the updater.",
        check=not_negative)
    client_timeout: float = option(60.0, "Seconds of silence after which a client is given up.", check=positive)
    disk_chunk_size: int = option(65536, "Bytes read from a file at once.", check=positive)
    network_chunk_size: int = option(65536, "Bytes read from a client at once.", check=positive)
    max_upload_time: float = option(86400.0, "Seconds that one upload may take.", check=positive)
    max_waiting_for_device: int = option(
        16, "Most uploads of one worker that may be at work on a file system, or wait for it, while it is slow (calls of a "
            "second and more); four times as many until a second after the first of these has ended, and when none was for "
            "half a second; fewer where it ends fewer in two seconds. More are answered 503 with Retry-After before their "
            "bodies are read. 0: no limit, and none waits for others.",
        check=not_negative)
    slow: float = option(0.0, "Least seconds that a PUT or DELETE takes, for tests.", check=not_negative)
    keep_cache_size: int = option(5242880, "Largest object in bytes that stays in the page cache when read.",
                                  check=not_negative)
    keep_cache_private: bool = option(False, "Keep objects in the page cache that were read with a token, too.")
    keep_cache_slo_manifest: bool = option(False, "Keep static large object manifests in the page cache always.")
    keep_cache_interval: float = option(
        60.0, "Seconds within which what is read again stays in the page cache, however large and whoever reads it; 0: "
        "the options above alone decide.", check=not_negative)
    cooperative_period: int = option(0, "Pieces of a body after which other requests get a turn; 0: never forced.",
                                     check=not_negative)
    etag_validate_pct: float = option(100.0, "Percentage of full reads whose MD5 is checked.", check=percent)
    etag_validate_interval: float = option(
        3600.0, "Seconds within which a full read of an unchanged file is not checked again; 0: each is.",
        check=not_negative)
    mb_per_sync: int = option(512, "MiB of an upload after which what is written is synced.", check=positive)
    allowed_headers: tuple[str, ...] = option(
        DEFAULT_ALLOWED_HEADERS, "Headers kept with an object, beside X-Object-Meta-* and those of the system.")
    eventlet_tpool_num_threads: str = unused("auto", "each device has threads of its own.",
                                             check=_auto_or_number)
    replication_concurrency: int = option(4, "SSYNC requests answered at once; 0: no limit.", check=not_negative)
    replication_concurrency_per_device: int = option(1, "SSYNC requests answered at once for one device; 0: no limit.",
                                                     check=not_negative)
    replication_lock_timeout: float = option(15.0, "Seconds that SSYNC waits for the lock of its device.",
                                             check=positive)
    replication_failure_threshold: int = option(100, "Failures after which an SSYNC may be broken off.",
                                                check=not_negative)
    replication_failure_ratio: float = option(1.0, "Failures for each success above which an SSYNC is broken off.",
                                              check=not_negative)
    splice: bool = unused(False, "bodies go out by sendfile where that pays.")
    reclaim_age: float = option(604800.0, "Seconds after which a tombstone may go.", check=positive)
    commit_window: float = option(60.0, "Seconds that a fragment waits for its commit before it may be reclaimed.",
                                  check=not_negative)
    slow_delete_log_threshold_seconds: float = option(
        120.0, "A DELETE that takes longer is logged with how long; -1: never.")
    disable_fallocate: bool = option(False, "Do not reserve room for a body before it is written.")
    expiring_objects_container_divisor: int = option(86400, "Seconds of expiry times that share a queue container.",
                                                     check=positive)
    expiring_objects_account_name: str = option("expiring_objects", "Account of the expiry queue, without its dot.")


@dataclass(frozen=True)
class ObjectUpdaterOptions(DaemonOptions):
    """Options of ``[object-updater]``."""

    interval: float = option(300.0, "Seconds from the beginning of one scan of the devices to that of the next; updates "
                                    "that a server of the same node has just kept are sent without waiting for it.",
                             check=positive)
    concurrency: int = option(8, "Containers that are told at once.", check=positive)
    updater_workers: int = unused(1, "each device has threads of its own.", check=positive)
    objects_per_second: float = option(50.0, "Requests a second, for each device that is scanned; many updates of one "
                                             "container can be one request. 0: no limit.", check=not_negative)
    node_timeout: float = option(10.0, "Seconds to wait for an answer of another node.", check=positive)
    report_interval: float = unused(300.0, "the state is shown all the time.", check=positive)
    max_objects_per_container_per_second: float = unused(
        0.0, "updates of one container go out in one request.", check=not_negative)
    per_container_ratelimit_buckets: int = unused(1000, "updates of one container go out in one request.", check=positive)
    max_deferred_updates: int = unused(10000, "updates of one container go out in one request.", check=not_negative)
    async_tracker_max_entries: int = option(100, "Containers whose oldest waiting update is looked at.", check=positive)
    async_tracker_dump_count: int = option(5, "Of those, how many are shown in recon.", check=not_negative)


@dataclass(frozen=True)
class ObjectExpirerOptions(DaemonOptions):
    """Options of ``[object-expirer]``. ``delay_reaping_ACCOUNT`` and ``delay_reaping_ACCOUNT/CONTAINER`` (URL-quoted), in
    seconds, come to them.
    """

    interval: float = option(300.0, "Seconds from the beginning of one pass to that of the next.", check=positive)
    report_interval: float = unused(300.0, "the state is shown all the time.", check=positive)
    tasks_per_second: float = option(50.0, "Entries of the queue that are carried out in a second. 0: no limit.",
                                     check=not_negative)
    concurrency: int = option(1, "Entries that are carried out at once.", check=positive)
    processes: int = option(0, "Processes in the cluster that share the queue; 0: in a node, all nodes share it; alone, "
                               "one does everything.", check=not_negative)
    process: int = option(0, "Which of them this is, from 0.", check=not_negative)
    request_tries: int = option(3, "Times that a request is tried.", check=positive)
    reclaim_age: float = option(604800.0, "Seconds after which the entry of an object that is not as expected goes.",
                                check=positive)
    dequeue_from_legacy: bool = option(True, "Work through the queue; false: only look.")
    round_robin_task_cache_size: int = option(100000, "Entries among which the containers that they are about take turns.",
                                              check=positive)
    node_timeout: float = option(10.0, "Seconds to wait for an answer of another node.", check=positive)
    internal_client_conf_path: str = option("", "Configuration of the pipeline that requests go through; empty: "
                                                "internal-client.conf in swift_dir if there is one, else a pipeline of cache "
                                                "and proxy-server.")
    expiring_objects_container_divisor: int = option(86400, "Seconds of expiry times that share a queue container.",
                                                     check=positive)
    expiring_objects_account_name: str = option("expiring_objects", "Account of the expiry queue, without its dot.")


@dataclass(frozen=True)
class PartitionDaemonOptions(DaemonOptions):
    """Options of the daemons that care for partitions."""

    interval: float = option(30.0, "Seconds from the beginning of one pass over all partitions to that of the next; what a "
                                   "server tells of, and what failed for a peer that is back, does not wait for it.",
                             check=positive, names=("interval", "run_pause"))
    concurrency: int = option(4, "Partitions that are worked on at once.", check=positive)
    http_timeout: float = option(60.0, "Seconds to wait for hashes, and for each line of an SSYNC session.", check=positive)
    node_timeout: float = option(10.0, "Seconds that a peer may take to accept what is sent.", check=positive)
    stats_interval: float = unused(300.0, "the state is shown all the time.", check=positive)
    ring_check_interval: float = option(15.0, "Seconds between two looks for a new ring.", check=positive)
    reclaim_age: float = option(604800.0, "Seconds after which a tombstone goes.", check=positive)
    commit_window: float = option(60.0, "Seconds that a fragment waits for its commit before it may be reclaimed.",
                                  check=not_negative)


@dataclass(frozen=True)
class ObjectReplicatorOptions(PartitionDaemonOptions):
    """Options of ``[object-replicator]``."""

    replicator_workers: int = unused(0, "each device has threads of its own.", check=not_negative)
    sync_method: str = option("ssync", "How objects get to other nodes: ssync, or rsync, which needs an rsync daemon there.",
                              check=one_of("ssync", "rsync"))
    rsync_timeout: float = option(900.0, "Seconds that one run of rsync may take.", check=positive)
    rsync_io_timeout: float = option(30.0, "Seconds that rsync waits for its peer.", check=positive)
    rsync_bwlimit: str = option("0", "Limit of rsync, in KiB a second or as rsync has it; 0: none.")
    rsync_compress: bool = option(False, "Have rsync compress what goes to another region.")
    rsync_module: str = option("{replication_ip}::object", "rsync module of a node; may hold {ip}, {port}, {replication_ip}, "
                                                           "{replication_port}, {region}, {zone}, {device} and {meta}.")
    handoffs_first: bool = option(False, "Send home what belongs elsewhere, and nothing else as long as there is any.")
    handoff_delete: int | None = option(
        None, "Primaries that must hold an object before a handoff's copy of it goes; auto or 0: all of them. Fewer is for "
              "emergencies: the copy that goes may be needed.", check=not_negative)
    log_rsync_transfers: bool = option(True, "Log what rsync brought.")
    rsync_error_log_line_length: int = option(0, "Characters of a line about a failed rsync; 0: all.", check=not_negative)


@dataclass(frozen=True)
class ObjectReconstructorOptions(PartitionDaemonOptions):
    """Options of ``[object-reconstructor]``."""

    reconstructor_workers: int = option(
        0, "Processes that share the devices, when the daemon runs alone; 0: one does everything. In a node all daemons "
           "share one process.", check=not_negative)
    lockup_timeout: float = unused(1800.0, "every wait has its own limit.", check=positive)
    handoffs_only: bool = option(False, "Send home what belongs elsewhere, and nothing else. For the time of a rebalance.",
                                 names=("handoffs_only", "handoffs_first"))
    rebuild_handoff_node_count: int = option(
        2, "Handoffs among which those are chosen that get what an unmounted device should hold; below 0: all, 0: none.")
    max_objects_per_revert: int = option(0, "Objects that go home in one session; 0: all of a partition.",
                                         check=not_negative)
    quarantine_threshold: int = option(
        0, "Fragments of an object that may be left, with nothing known of it on all other nodes, for them to be put aside "
           "as remains of what was deleted long ago; 0: never.", check=not_negative)
    quarantine_age: float | None = option(None, "Seconds that such an object must be old; auto: reclaim_age.",
                                          check=not_negative)
    request_node_count: str = option(
        "2 * replicas", "Nodes that are asked for fragments of an object before it is given up: a number, or N * replicas.",
        check=count_of_nodes)
    write_legacy_ec_crc: bool | None = option(
        None, "Write fragments that liberasurecode before 1.6.2 can read, too; auto: as the environment says.")


@dataclass(frozen=True)
class ObjectAuditorOptions(DaemonOptions):
    """Options of ``[object-auditor]``."""

    interval: float = option(30.0, "Seconds of rest between two passes.", check=not_negative)
    concurrency: int = option(1, "Devices that are read at once.", check=positive)
    files_per_second: float = option(20.0, "Objects read in a second, on each device. 0: no limit.", check=not_negative)
    bytes_per_second: float = option(10_000_000.0, "Bytes read in a second, on each device. 0: no limit.", check=not_negative)
    zero_byte_files_per_second: float = option(
        50.0, "Objects whose metadata and size the quick scan checks in a second, on each device. 0: no quick scan.",
        check=not_negative)
    log_time: float = option(3600.0, "Seconds between two log lines of a pass.", check=positive)
    object_size_stats: tuple[str, ...] = option((), "Sizes in bytes up to which objects are counted.", check=_sizes)
    rsync_tempfile_timeout: float | None = option(
        None, "Seconds after which the file of an interrupted rsync goes; auto: a day.", check=positive)
    disk_chunk_size: int = option(65536, "Bytes read from a file at once.", check=positive)
    reclaim_age: float = option(604800.0, "Seconds after which a tombstone goes.", check=positive)
    node_timeout: float = option(10.0, "Seconds that a watcher waits for an answer of another node.", check=positive)
    overdue: float = option(
        86400.0, "Seconds after an object was due to expire, and is still there, at which it is put into the expiry queue "
                 "once more; what delay_reaping_... of [object-expirer] gives comes on top. 0: never.", check=not_negative)
    expiring_objects_container_divisor: int = option(86400, "Seconds of expiry times that share a queue container.",
                                                     check=positive)
    expiring_objects_account_name: str = option("expiring_objects", "Account of the expiry queue, without its dot.")
    watchers: tuple[str, ...] = option(
        (), "Names of watchers, as dark_data; sections [object-auditor:watcher:NAME] have their options.")
    quarantine_limit_share: float = option(
        0.05, "Share of the objects of a device, of those read last, that may fail before the auditor stops putting them "
              "aside and reports: then the device or its controller is at fault, not the objects.", check=_share)


@dataclass(frozen=True)
class ObjectRelinkerOptions:
    """Options of ``[object-relinker]``."""

    devices: str = option("/srv/node", "Directory that holds the device mount points.")
    mount_check: bool = option(True, "A device that is not a mount point is an error.")
    swift_dir: str = option("/etc/swift", "Directory of the cluster file and the rings.")
    recon_cache_path: str = option("/var/cache/swift", "Directory of the recon files.")
    workers: int | None = option(None, "Processes that share the devices; auto: one for each device.", check=not_negative)
    files_per_second: float = option(0.0, "Hash directories that each process looks at in a second; 0: no limit.",
                                     check=not_negative)
    stats_interval: float = option(300.0, "Seconds between two log lines about the progress.", check=positive)
    clobber_hardlink_collisions: bool = option(
        False, "Where another file has the name that a link is to get: put aside what is in the new place (relink), or keep "
               "it and remove the old one (cleanup). Else it is an error, and both stay.")
    reclaim_age: float = option(604800.0, "Seconds after which a tombstone goes.", check=positive)
    commit_window: float = option(60.0, "Seconds that a fragment waits for its commit before it may be reclaimed.",
                                  check=not_negative)
