"""Which device takes which partition. Pure: arrays and a random generator in, a new table out.

A slot is a row (replica) and a partition. A rebalance has three steps:

1. *Free* the slots that must move: on devices that go, new ones, second replicas on one device; and, of partitions that may
   move, one slot each where a tier holds more than it should.
2. *Place* the free slots on devices that are below their quota, so that no tier gets more of a partition than its limit.
3. *Level*: move slots from devices above their quota to devices below it, again within the limits.

Apart from the forced ones, no partition has two slots changed. Each step draws many random proposals at once, checks all
of them with array arithmetic, and carries out those that hold; what random proposals do not find, a search does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from keelstore.common.ring.spread import spread
from keelstore.common.ring.topology import DEPTHS, Ints, Limits, Topology

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]
Progress = Callable[[str, float], None]

SAME_SERVER, SAME_ZONE, SAME_REGION, ANYWHERE = 2, 1, 0, -1
_CHUNK = 1 << 17     # proposals checked in one go
_SEARCHED = 256      # slots for which every device is tried, in one go
_LOT = 2048          # crowded partitions relieved in one go
_MAX_ROUNDS = 400
_DETOUR_SLOTS = 1 << 24
_TRIED = 2048        # slots looked at for one detour


@dataclass(frozen=True)
class Problem:
    """What a rebalance starts from.

    ``table``: device ids, rows by partitions, ``topology.none`` where nobody has the slot. ``short``: how many partitions
    the last row has. ``movable``: the partitions of which a slot may be moved. ``quotas``: slots for each device to hold.
    ``crowded``: by depth, the tiers that cannot but hold too much (``topology.crowded_tiers``).
    """

    topology: Topology
    limits: Limits
    crowded: tuple[NDArray[np.bool_], ...]
    quotas: Ints
    table: NDArray[np.int32]
    short: int
    movable: Bools


def count_held(topology: Topology, table: NDArray[np.int32]) -> Ints:
    """How many slots each device has, by id."""
    counts = np.zeros(topology.size + 1, dtype=np.int64)
    for row in table:
        for begin in range(0, len(row), _CHUNK):
            counts += np.bincount(row[begin:begin + _CHUNK], minlength=topology.size + 1)
    return counts[:-1].astype(np.int32)


def assign(problem: Problem, rng: np.random.Generator, progress: Progress | None = None) -> NDArray[np.int32]:
    """A new table. Each row and partition has a device of positive quota, and no partition has one twice."""
    rows, partitions = problem.table.shape
    say: Progress = progress or (lambda what, share: None)
    if rows and (problem.table == problem.topology.none).all():
        whole = problem.short == partitions
        return spread(problem.topology, problem.limits, problem.crowded, problem.quotas, partitions,
                      rows if whole else rows - 1, 0 if whole else problem.short, rng,
                      lambda share: say("assigning partitions", share * 0.8))
    return _Assignment(problem, rng, say).run()


class _Assignment:
    """A rebalance under way."""

    def __init__(self, problem: Problem, rng: np.random.Generator, say: Progress):
        self.topology, self.limits, self.rng, self.say = problem.topology, problem.limits, rng, say
        self.table = problem.table.copy()
        self.rows, self.partitions = self.table.shape
        self.exists = np.ones(self.table.shape, dtype=bool)
        self.exists[-1, problem.short:] = False
        self.free = problem.movable.copy()  # partitions of which a slot may still be moved
        self.quotas = problem.quotas.astype(np.int64)
        self.held = count_held(self.topology, self.table).astype(np.int64)
        self.none = self.topology.none

    def run(self) -> NDArray[np.int32]:
        self.say("collecting partitions", 0.0)
        self.free_duplicates()
        homeless = np.flatnonzero((self.table == self.none) & self.exists)
        self.free[homeless % self.partitions] = False
        former = np.full(len(homeless), self.none, dtype=np.int32)
        crowded, crowded_former = self.free_crowded()
        self.say("placing partitions", 0.3)
        self.place(np.concatenate([homeless, crowded]), np.concatenate([former, crowded_former]))
        self.say("levelling devices", 0.6)
        self.level_all()
        return self.table

    # -- step 1 --------------------------------------------------------------------------------------------------------

    def free_duplicates(self) -> None:
        for row in range(1, self.rows):
            for other in range(row):
                same = np.flatnonzero((self.table[row] == self.table[other]) & (self.table[row] != self.none))
                self.take_away(np.full(len(same), row), same)

    def free_crowded(self) -> tuple[Index, NDArray[np.int32]]:
        """Free one slot of each partition that has too many in some tier and may move. Slots, and who had them."""
        limited = [depth for depth in range(DEPTHS - 1)
                   if np.append(self.limits.most[depth], self.rows).min() < self.rows]
        slots: list[Index] = []
        formers: list[NDArray[np.int32]] = []
        for begin in range(0, self.partitions, _CHUNK):
            part = self.table[:, begin:begin + _CHUNK]
            weight = np.zeros(part.shape, dtype=np.int16)
            for depth in limited:
                most = np.append(self.limits.most[depth], self.rows)
                number = self.topology.of[depth][part]
                times = np.zeros(part.shape, dtype=np.int16)
                for row in range(self.rows):
                    times += number == number[row]
                weight += (times > most[number]) * (1 << (DEPTHS - depth))
            crowded = np.flatnonzero((weight.max(axis=0) > 0) & self.free[begin:begin + _CHUNK])
            # In small lots, so that what one lot took from a device tells the next whom to spare.
            for lot in np.array_split(self.rng.permutation(crowded), len(crowded) // _LOT + 1) if len(crowded) else ():
                devices = part[:, lot]
                load = np.append((self.held - self.quotas) / np.maximum(self.quotas, 1), 0.0)
                load = load / max(np.abs(load).max(), 1.0)
                noise = self.rng.random(devices.shape) * 0.001
                row_of = np.argmax(weight[:, lot] + load[devices] * 0.4 + noise, axis=0)
                part_of = lot + begin
                slots.append(row_of * self.partitions + part_of)
                formers.append(self.table[row_of, part_of])
                self.take_away(row_of, part_of)
                self.free[part_of] = False
        if not slots:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        return np.concatenate(slots), np.concatenate(formers)

    def take_away(self, row_of: Index, part_of: Index) -> None:
        np.subtract.at(self.held, self.table[row_of, part_of], 1)
        self.table[row_of, part_of] = self.none

    # -- step 2 --------------------------------------------------------------------------------------------------------

    def place(self, slots: Index, former: NDArray[np.int32]) -> None:
        """Give each slot a device, at best one that lacks some, and nowhere too many of one partition."""
        total = max(len(slots), 1)
        idle = 0
        for level in (SAME_SERVER, SAME_ZONE, SAME_REGION):
            slots, former = self.place_round(slots, former, level)
        for _ in range(_MAX_ROUNDS):
            if len(slots) <= _SEARCHED or idle >= 4:
                break
            before = len(slots)
            slots, former = self.place_round(slots, former, ANYWHERE)
            idle = idle + 1 if before - len(slots) < before // 50 + 1 else 0
            self.say("placing partitions", 0.3 + 0.3 * (1 - len(slots) / total))
        self.place_by_search(slots)

    def place_round(self, slots: Index, former: NDArray[np.int32], level: int) -> tuple[Index, NDArray[np.int32]]:
        """One proposal for each slot; returns the slots, and former devices, for which it did not hold."""
        lacking = np.repeat(np.arange(self.topology.size), np.maximum(self.quotas - self.held, 0))
        if not len(slots) or not len(lacking):
            return slots, former
        mix = self.rng.permutation(len(slots))
        slots, former = slots[mix], former[mix]
        lacking = self.rng.permutation(lacking)
        ours, theirs = self.pair(former, lacking, level)
        part_of = slots[ours] % self.partitions
        _, one_each = np.unique(part_of, return_index=True)  # the second slot of a partition waits for the next round
        ours, theirs = ours[one_each], theirs[one_each]
        row_of, part_of = np.divmod(slots[ours], self.partitions)
        devices = lacking[theirs]
        good = self.fits(row_of, part_of, devices)
        self.table[row_of[good], part_of[good]] = devices[good]
        np.add.at(self.held, devices[good], 1)
        rest = np.ones(len(slots), dtype=bool)
        rest[ours[good]] = False
        return slots[rest], former[rest]

    def pair(self, former: NDArray[np.int32], lacking: Index, level: int) -> tuple[Index, Index]:
        """Pair slots with lacking devices, within a tier at ``level``; indexes of both."""
        if level == ANYWHERE:
            some = np.arange(min(len(former), len(lacking)))
            return some, some
        ours, theirs = self.topology.of[level][former], self.topology.of[level][lacking]
        return _match(ours, theirs)

    def place_by_search(self, slots: Index) -> None:
        """Give each slot the best of all devices that fit: the last of the random rounds' leavings."""
        devices = np.flatnonzero(self.quotas > 0)
        for _ in range(_MAX_ROUNDS * 100):
            if not len(slots):
                return
            batch, rest = slots[:_SEARCHED], slots[_SEARCHED:]
            _, one_each = np.unique(batch % self.partitions, return_index=True)
            chosen = batch[one_each]
            row_of, part_of = np.divmod(chosen, self.partitions)
            good = self.fitting(row_of, part_of, devices)
            lack = (self.quotas - self.held)[devices].astype(np.float64)
            noise = self.rng.gumbel(size=good.shape)
            first = np.where(good & (lack > 0), np.log(np.maximum(lack, 1e-9)) + noise, -np.inf)
            then = np.where(good, -1e6 + 1e3 * lack / self.quotas[devices] + noise, -np.inf)
            last = np.where(self.absent(part_of, devices), -1e9 + lack / self.quotas[devices], -np.inf)
            score = np.maximum(np.maximum(first, then), last)
            pick = np.argmax(score, axis=1)
            best = score[np.arange(len(chosen)), pick]
            taken = devices[pick]
            # Of those that meet in a lacking device only as many as it lacks may have it; the others try again.
            wanted = np.isfinite(first[np.arange(len(chosen)), pick])
            done = ~wanted | (_rank(taken) < lack[pick])
            done &= np.isfinite(best)
            self.table[row_of[done], part_of[done]] = taken[done]
            np.add.at(self.held, taken[done], 1)
            again = np.ones(len(batch), dtype=bool)
            again[one_each[done]] = False
            slots = np.concatenate([batch[again], rest])

    # -- step 3 --------------------------------------------------------------------------------------------------------

    def level_all(self) -> None:
        """Move slots from devices with too many to devices with too few, from near to far."""
        for level, careful in ((SAME_SERVER, True), (SAME_ZONE, True), (SAME_REGION, True), (ANYWHERE, True),
                               (ANYWHERE, False)):
            idle, effort = 0, 4.0
            for _ in range(_MAX_ROUNDS):
                surplus = int(np.maximum(self.held - self.quotas, 0).sum())
                if not surplus or idle >= 3:
                    break
                moved, seen_all = self.level_round(level, careful, effort)
                effort = effort * 2 if moved * 2 < surplus else effort
                idle = 0 if moved > surplus // 100 else idle + (1 if moved or not seen_all else 2)
        # A detour takes time for one slot; in a table of millions a few slots off are not worth minutes.
        for _ in range(max(20, min(500, _DETOUR_SLOTS // self.table.size))):
            if not self.detour():
                break

    def level_round(self, level: int, careful: bool, effort: float) -> tuple[int, bool]:
        """Try to move slots within tiers at ``level``. How many were moved, and whether all that could be were tried."""
        surplus, lack = np.maximum(self.held - self.quotas, 0), np.maximum(self.quotas - self.held, 0)
        lacking = np.flatnonzero(lack)
        if not len(lacking):
            return 0, True
        # Lacking slots, sorted by tier, so that a proposal is one of its tier's range.
        pool = np.repeat(lacking, lack[lacking])
        tier_of = self.topology.of[level] if level >= 0 else np.zeros(self.topology.size + 1, dtype=np.int32)
        pool = pool[np.argsort(tier_of[pool], kind="stable")]
        starts = np.searchsorted(tier_of[pool], np.arange(int(tier_of.max()) + 2))
        sizes = np.diff(starts)
        useful = np.zeros(self.topology.size + 1, dtype=bool)
        useful[:-1] = (surplus > 0) & (tier_of[:-1] >= 0)
        useful[:-1] &= sizes[np.maximum(tier_of[:-1], 0)] > 0
        if not useful.any():
            return 0, True
        row_of, part_of = self.sample(useful, surplus, effort)
        if not len(row_of):
            return 0, True
        source = self.table[row_of, part_of]
        tier = tier_of[source]
        target = pool[starts[tier] + (self.rng.random(len(tier)) * sizes[tier]).astype(np.int64)]
        good = self.fits(row_of, part_of, target)
        if careful:
            good &= self.spares(row_of, part_of, target)
        row_of, part_of, target, source = row_of[good], part_of[good], target[good], source[good]
        _, one_each = np.unique(part_of, return_index=True)
        one_each = self.rng.permutation(one_each)
        one_each = one_each[_rank(source[one_each]) < surplus[source[one_each]]]
        one_each = one_each[_rank(target[one_each]) < lack[target[one_each]]]
        row_of, part_of, target, source = row_of[one_each], part_of[one_each], target[one_each], source[one_each]
        self.table[row_of, part_of] = target
        np.subtract.at(self.held, source, 1)
        np.add.at(self.held, target, 1)
        self.free[part_of] = False
        return len(row_of), effort > 1e4

    def detour(self) -> bool:
        """Level one slot by way of a third device, when no slot can go straight: from a device with too many to one that
        has enough, and a slot of that one to a device with too few. False when there is none, or no need."""
        surplus, lack = np.maximum(self.held - self.quotas, 0), np.maximum(self.quotas - self.held, 0)
        if not surplus.any():
            return False
        row_of, part_of = self.some_slots(np.append(surplus > 0, False))
        others = np.append((self.quotas > 0) & (surplus == 0) & (lack == 0), False)
        via_row, via_part = self.some_slots(others)
        for target in self.rng.permutation(np.flatnonzero(lack)):
            good = self.fits(via_row, via_part, np.full(len(via_row), target))
            first_row, first_part = via_row[good], via_part[good]
            if not len(first_row):
                continue
            via = self.table[first_row, first_part]
            devices, any_slot = np.unique(via, return_index=True)
            possible = self.fitting(row_of, part_of, devices.astype(np.int64))
            found = np.argwhere(possible & (part_of[:, None] != first_part[any_slot][None, :]))
            if len(found):
                slot, device = found[self.rng.integers(len(found))]
                step = any_slot[device]
                self.move(row_of[slot], part_of[slot], int(devices[device]))
                self.move(first_row[step], first_part[step], int(target))
                return True
        return False

    def some_slots(self, wanted: Bools) -> tuple[Index, Index]:
        """Random slots, of partitions that may move, on any of the wanted devices; not more than can be tried at once."""
        found = np.flatnonzero(wanted[self.table] & self.free)
        if len(found) > _TRIED:
            found = self.rng.choice(found, _TRIED, replace=False)
        row_of, part_of = np.divmod(self.rng.permutation(found), self.partitions)
        return row_of, part_of

    def move(self, row: int, part: int, device: int) -> None:
        self.held[self.table[row, part]] -= 1
        self.held[device] += 1
        self.table[row, part] = device
        self.free[part] = False

    def sample(self, useful: Bools, surplus: Index, effort: float) -> tuple[Index, Index]:
        """A random lot of slots of the useful devices, about ``effort`` times what each has too many."""
        share = np.zeros(self.topology.size + 1, dtype=np.float32)
        share[:-1] = (surplus * effort + 16) / np.maximum(self.held, 1)
        share[~useful] = 0.0
        rows, parts = [], []
        for row in range(self.rows):
            chance = share[self.table[row]]
            found = np.flatnonzero((chance > 0) & self.free)
            if share.max() < 1.0 or len(found) > _CHUNK:
                found = found[self.rng.random(len(found), dtype=np.float32) < chance[found]]
            rows.append(np.full(len(found), row))
            parts.append(found)
        return np.concatenate(rows), np.concatenate(parts)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def fits(self, row_of: Index, part_of: Index, devices: Index) -> Bools:
        """Whether each slot could have the device: not there yet, and no tier would hold more than its limit."""
        good = np.empty(len(devices), dtype=bool)
        for begin in range(0, len(devices), _CHUNK):
            piece = slice(begin, begin + _CHUNK)
            others = self.others(row_of[piece], part_of[piece])
            mine = devices[piece]
            fine = ~(others == mine).any(axis=0)
            for depth in range(DEPTHS - 1):
                number, most = self.topology.of[depth], self.limits.most[depth]
                if most.min() >= self.rows:
                    continue
                tier = number[mine]
                fine &= (number[others] == tier).sum(axis=0) < most[tier]
            good[piece] = fine
        return good

    def spares(self, row_of: Index, part_of: Index, devices: Index) -> Bools:
        """Whether the tiers that each slot would leave keep at least what they should hold."""
        good = np.empty(len(devices), dtype=bool)
        for begin in range(0, len(devices), _CHUNK):
            piece = slice(begin, begin + _CHUNK)
            source = self.table[row_of[piece], part_of[piece]]
            others = self.others(row_of[piece], part_of[piece])
            fine = np.ones(len(source), dtype=bool)
            for depth in range(DEPTHS - 1):
                number, least = self.topology.of[depth], self.limits.least[depth]
                if not least.any():
                    continue
                tier = number[source]
                stays = tier == number[devices[piece]]
                fine &= stays | ((number[others] == tier).sum(axis=0) >= least[tier])
            good[piece] = fine
        return good

    def others(self, row_of: Index, part_of: Index) -> NDArray[np.int32]:
        """The devices of each slot's partition in the other rows."""
        others = self.table[:, part_of]
        others[row_of, np.arange(len(part_of))] = self.none
        return others

    def fitting(self, row_of: Index, part_of: Index, devices: Index) -> Bools:
        """The same as ``fits`` for every slot (rows) with every device (columns)."""
        others = self.others(row_of, part_of)
        good = self.absent(part_of, devices)
        slot = np.broadcast_to(np.arange(len(part_of)), others.shape)
        for depth in range(DEPTHS - 1):
            number, most = self.topology.of[depth], self.limits.most[depth]
            tiers = number[others]
            real = tiers >= 0
            counts = np.zeros((len(part_of), len(most)), dtype=np.int32)
            np.add.at(counts, (slot[real], tiers[real]), 1)
            good &= (counts < most)[:, number[devices]]
        return good

    def absent(self, part_of: Index, devices: Index) -> Bools:
        """Whether each partition (rows) lacks each device (columns)."""
        found = np.ones((len(part_of), len(devices)), dtype=bool)
        for row in self.table[:, part_of]:
            found &= row[:, None] != devices
        return found


def _rank(groups: NDArray[Any]) -> Index:
    """For each entry, how many equal ones stand before it."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    new = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(groups) else np.empty(0, int)
    sizes = np.diff(np.append(new, len(groups)))
    rank = np.empty(len(groups), dtype=np.int64)
    rank[order] = np.arange(len(groups)) - np.repeat(new, sizes)
    return rank


def _match(ours: NDArray[Any], theirs: NDArray[Any]) -> tuple[Index, Index]:
    """Pair entries of equal value, each once: the first with the first. Entries of -1 have no pair."""
    width = max(len(ours), len(theirs), 1)
    left = np.where(ours >= 0, ours.astype(np.int64) * width + _rank(ours), -1)
    right = theirs.astype(np.int64) * width + _rank(theirs)
    _, first, second = np.intersect1d(left, right, assume_unique=False, return_indices=True)
    return first, second
