"""What a proxy says of itself, read as if it were lying."""

import json

from hypothesis import given
from hypothesis import strategies as st

from fleet.model import Proxy
from fleet.proxies.readings import MOST_HISTORY, MOST_REQUESTS, reading, wanted
from tests.unit.proxy.scripted import ask, client, eventually, hang_after_one, proxied, tell, told, upstream

BEFORE = Proxy("atlas", "proxy-8088", "http://127.0.0.1:8088", 0.0)


async def test_a_real_proxy_is_read_whole():
    async with upstream(tell) as up, upstream(hang_after_one, model="n") as slow, proxied(up, slow) as proxy:
        assert (await told(proxy, ask())).status == 200
        async with client(proxy, ask(stream=True, model="n")):
            await slow.until(lambda: slow.running == 1)
            await eventually(lambda: any(e.tokens for e in proxy.proxy.records.live.values()))
            state, requests = proxy.proxy.state(), proxy.proxy.requests()
            read = reading(BEFORE, json.loads(json.dumps(state)), json.loads(json.dumps(requests)), 5.0)
        assert [up.name for up in read.upstreams] == ["m", "n"]
        assert (read.upstreams[1].running, read.upstreams[1].health) == (1, "ready")
        assert [request.model for request in read.live] == ["n"]
        assert (read.ended[-1].model, read.ended[-1].status, read.ended[-1].tokens) == ("m", 200, 2)
        assert read.models == {"m": ("m",), "n": ("n",)}
        assert read.history[-1].live == 1


def test_the_rate_is_what_was_written_between_two_readings():
    def state(tokens: int) -> dict:
        return {"started": 1.0, "upstreams": [{"name": "a", "tokens": tokens}]}

    first = reading(BEFORE, state(100), {"live": [{"id": "1", "tokens": 10}]}, 10.0)
    second = reading(first, state(130), {"live": [{"id": "2", "tokens": 20}]}, 12.0)
    assert second.history[-1].tokens_per_second == 20.0
    at_once = reading(second, state(130), {"live": [{"id": "2", "tokens": 24}]}, 12.01)
    assert at_once.history[-1].tokens_per_second == 44 / (12.01 - 10.0)       # over a moment it would be 400
    again = reading(second, {"started": 9.0, "upstreams": []}, {}, 14.0)       # started anew: no rate of minus 150
    assert again.history[-1].tokens_per_second == 0.0


def test_history_and_lists_are_bounded():
    proxy = BEFORE
    for second in range(MOST_HISTORY + 50):
        proxy = reading(proxy, {}, {"live": [{}] * 5000}, float(second))
    assert len(proxy.history) == MOST_HISTORY
    assert len(proxy.live) == MOST_REQUESTS


ODD = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
                   lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
                       ("upstreams", "live", "ended", "models", "aliases", "wanted", "waiting", "tokens", "name",
                        "slots", "progress", "held_models", "started", "seconds")), inner, max_size=4), max_leaves=20)


@given(st.dictionaries(st.sampled_from(("upstreams", "models", "aliases", "wanted", "waiting", "started", "requests",
                                        "held_models", "drafting", "stopping")), ODD),
       st.dictionaries(st.sampled_from(("live", "ended")), ODD))
def test_whatever_it_says_it_is_read(state, requests):
    read = reading(reading(BEFORE, state, requests, 1.0), state, requests, 2.0)
    assert all(isinstance(up.tokens, int) and up.tokens >= 0 for up in read.upstreams)
    assert all(request.to_first_byte is None or isinstance(request.to_first_byte, float) for request in read.live)
    assert all(isinstance(count, int) for count, _ in wanted(state).values())
