"""Many seeds, each in a forked process: nothing of one is left for the next, and one that hangs is ended."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import greenlet

from keelstore.common import concurrency
from test.simulation import disks, faults, lives, worldtime
from test.simulation.cluster import Shape, make_rings, warm_up
from test.simulation.story import Outcome, Story

PROFILE = os.environ.get("SIMULATION_PROFILE", "")  # tottime or cumtime: tell where the time of each seed goes
HANG_S = 60  # seconds of processor time that a seed may take


def shape_of(seed: int, policy: str) -> Shape:
    """Mostly copies; where fragments can be repaired, one seed in four has them."""
    if policy == "mixed":
        from keelstore.node.daemons import DAEMONS

        policy = "fragments" if seed % 4 == 3 and "object-reconstructor" in DAEMONS else "copies"
    return Shape(policy=policy, devices=2) if policy == "fragments" else Shape()


def run_seed(seed: int, shape: Shape, rings: dict[str, list[bytes]], operations: int) -> Outcome:
    """In this process, which can run no other after."""
    root = f"/dev/shm/keelstore-simulation-{disks.real.getpid():07d}"
    shutil.rmtree(root, ignore_errors=True)
    disks.real.mkdir(root)
    began = worldtime.real_cpu()
    worldtime.begin()
    lives.begin()
    random.seed(seed)
    entropy.seed(seed)
    gc.disable()
    try:
        story = Story(seed, root, shape, rings, operations)
        try:
            outcome = concurrency.spawn(story.run).wait()
        except worldtime.Stalled:
            outcome = Outcome(seed, operations, ["somebody waits for ever: " + _who_waits()], story.lines)
        except Exception:
            outcome = Outcome(seed, operations, ["the simulation failed: " + traceback.format_exc()], story.lines)
        outcome.cpu_s = worldtime.real_cpu() - began
        found: Outcome = outcome
        return found
    finally:
        lives.leave()
        disks.remove_tree(root)


def _who_waits() -> str:
    """Where each green thread is that has begun and not ended."""
    found = []
    for thread in gc.get_objects():
        if isinstance(thread, greenlet.greenlet) and thread.gr_frame is not None:
            lines = traceback.format_stack(thread.gr_frame, limit=8)
            if "/eventlet/hubs/" not in lines[-1] or len(lines) > 3:
                life = getattr(thread, "life", None)
                whose = "the harness" if life is None else f"node {life.node}{', dead' if life.is_dead else ''}"
                found.append(f"a green thread of {whose}\n{''.join(lines)}")
    return "\n".join(found)


entropy = random.Random(0)  # in place of the system's


def run_seeds(seeds: Iterator[int] | range | list[int], policy: str, operations: int, verbose: bool = False,
              stop_at: int = 0) -> tuple[int, list[int], float]:
    """How many ran, which failed, and the processor seconds."""
    rings: dict[Shape, dict[str, list[bytes]]] = {}
    failed: list[int] = []
    count, total = 0, 0.0
    warm_up()
    gc.collect()
    gc.freeze()
    for seed in seeds:
        shape = shape_of(seed, policy)
        if shape not in rings:
            rings[shape] = make_rings(shape)
        is_well, cpu_s = _in_child(seed, shape, rings[shape], operations, verbose)
        count += 1
        total += cpu_s
        if not is_well:
            failed.append(seed)
            if stop_at and len(failed) >= stop_at:
                break
    return count, failed, total


def _in_child(seed: int, shape: Shape, rings: dict[str, list[bytes]], operations: int, verbose: bool) -> tuple[bool, float]:
    sys.stdout.flush()
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        status = 2
        try:
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            outcome = _profiled(run_seed, seed, shape, rings, operations) if PROFILE else run_seed(
                seed, shape, rings, operations)
            _print(outcome, shape, verbose)
            os.write(writer, f"{outcome.cpu_s:.3f}".encode())
            status = 0 if outcome.is_well else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 2:
        print(f"seed {seed}: broke off with status {status}", flush=True)
        shutil.rmtree(f"/dev/shm/keelstore-simulation-{pid:07d}", ignore_errors=True)
    return status == 0, float(text or 0)


def _profiled(function: Any, *args: Any) -> Any:
    import cProfile
    import pstats

    profile = cProfile.Profile(worldtime.real_cpu)
    try:
        return profile.runcall(function, *args)
    finally:
        found = pstats.Stats(profile).sort_stats(PROFILE)
        found.print_stats(60)
        if os.environ.get("SIMULATION_CALLERS"):
            found.print_callers(os.environ["SIMULATION_CALLERS"])


def _print(outcome: Outcome, shape: Shape, verbose: bool) -> None:
    if verbose or not outcome.is_well:
        if verbose:
            for line in outcome.story:
                print(line)
        for line in outcome.violations:
            print(f"seed {outcome.seed}: {line}")
    if verbose:
        print(f"seed {outcome.seed} ({shape.policy}): {'well' if outcome.is_well else 'FAILED'}; {outcome.operations} "
              f"operations, {outcome.virtual_s:.0f} s of virtual time, {outcome.rounds} rounds, {outcome.cpu_s:.2f} s of "
              "processor time")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m test.simulation", description=__doc__)
    parser.add_argument("--seeds", default="1-100", help="1-100, or 5, or 5,9,12 (default %(default)s)")
    parser.add_argument("--operations", type=int, default=200, help="requests of clients in each seed")
    parser.add_argument("--policy", default="mixed", choices=("mixed", "copies", "fragments"))
    parser.add_argument("--story", action="store_true", help="tell what happened in each seed")
    parser.add_argument("--log", action="store_true", help="show what the servers and daemons log")
    parser.add_argument("--fault", choices=sorted(faults.FAULTS), help="break the product in this way first")
    parser.add_argument("--stop-at", type=int, default=0, help="end after so many failing seeds")
    options = parser.parse_args()
    logging.disable(logging.NOTSET if options.log else logging.CRITICAL)
    if options.log:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s", force=True)
    if options.fault:
        faults.FAULTS[options.fault]()
    seeds = [number for part in options.seeds.split(",") for number in _range(part)]
    count, failed, cpu_s = run_seeds(seeds, options.policy, options.operations, options.story, options.stop_at)
    print(f"{count} seeds, {len(failed)} failed{': ' + ' '.join(map(str, failed)) if failed else ''}; {cpu_s:.1f} s of "
          f"processor time, {cpu_s / max(count, 1):.2f} s each", flush=True)
    return 1 if failed else 0


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
