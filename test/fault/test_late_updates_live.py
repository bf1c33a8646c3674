"""Late updates never undelete, live: writers and deleters race at the proxies of four nodes while one node misses half of it
(issue 4, point 3). What is deleted last stays deleted, in the objects and in the listing, when the node is back.
"""

from __future__ import annotations

import threading
from pathlib import Path

from test.support.client import unique
from test.support.store import running
from test.support.waiting import until

NAMES = [f"o{number}" for number in range(12)]
ROUNDS = 6


def test_what_is_deleted_last_stays_deleted(tmp_path: Path) -> None:
    with running(tmp_path / "data", nodes=4, workers=1, is_patient=True) as store:
        account = store.login()
        container = unique("late")
        account.put(container).expect(201)

        def race(proxy: int, kind: str) -> None:
            own = account.at(store.proxy(proxy))
            for number in range(ROUNDS):
                for name in NAMES:
                    if kind == "put":
                        own.put(container, name, body=b"%d" % number)
                    elif kind == "post":
                        own.post(container, name, headers={"X-Object-Meta-A": str(number)})
                    else:
                        own.delete(container, name)

        threads = [threading.Thread(target=race, args=(proxy, kind))
                   for proxy, kind in ((1, "put"), (2, "delete"), (3, "put"), (2, "post"))]
        for thread in threads:
            thread.start()
        store.stop_node(4)
        for thread in threads:
            thread.join()
        kept, gone = NAMES[::2], NAMES[1::2]
        for name in kept:
            account.put(container, name, body=b"last").expect(201)
        for name in gone:
            account.delete(container, name).expect(204, 404)
        store.start_node(4)
        for proxy in (1, 4):
            own = account.at(store.proxy(proxy))
            until(lambda own=own: [row["name"] for row in own.listing(container)] == sorted(kept),  # type: ignore[misc]
                  f"the listing at proxy {proxy} is what was written last", 60)
            for name in NAMES:
                until(lambda own=own, name=name: own.get(container, name).status == (200 if name in kept else 404),  # type: ignore[misc]
                      f"{name} at proxy {proxy} is what was written last", 60)
