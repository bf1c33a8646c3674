import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelstore.common.quorum import best_response, have_quorum, majority_size, quorum_size

statuses = st.lists(st.sampled_from([100, 200, 201, 202, 204, 304, 400, 404, 409, 412, 500, 503, 507]), min_size=1, max_size=7)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (6, 3)])
def test_quorum_size(count, expected):
    assert quorum_size(count) == expected
    assert majority_size(count) == count // 2 + 1


@pytest.mark.parametrize(("given_", "expected"), [
    ([201, 201, 503], 201), ([201, 202, 404], 202), ([404, 404, 201], 404), ([404, 409, 201], 409), ([503, 503, 503], None),
    ([503, 503, 201], None), ([201, 404, 503], None), ([200, 304], 200), ([500], None), ([404], 404),
])
def test_best_response(given_, expected):
    best = best_response(given_)
    assert (best[0] if best else None) == expected


def test_overrides_count_but_do_not_speak():
    assert best_response([204, 404, 503], overrides={404: 204}) == (204, 0)
    assert best_response([404, 404, 204], overrides={404: 204}) == (404, 0)
    assert best_response([404, 503, 503], overrides={404: 204}) is None


@given(statuses)
def test_no_answer_above_499_speaks(given_):
    best = best_response(given_)
    if best is not None:
        assert 200 <= best[0] < 500
        assert given_[best[1]] == best[0]
        assert sum(status // 100 == best[0] // 100 for status in given_) >= quorum_size(len(given_))


@given(statuses)
def test_waiting_ends_when_an_answer_is_certain(given_):
    if have_quorum(given_, len(given_)):
        assert best_response(given_) is not None or sum(s // 100 == 1 for s in given_) >= quorum_size(len(given_))
    else:
        assert best_response(given_) is None


@given(statuses, st.randoms())
def test_the_order_of_answers_does_not_matter(given_, random):
    shuffled = list(given_)
    random.shuffle(shuffled)
    assert (best_response(given_) or (None,))[0] == (best_response(shuffled) or (None,))[0]
