"""Links at shares of their capacity, by several names at once."""

import pytest

from simcoll.errors import ConfigError
from simcoll.topology import crossbar
from simcoll.topology.degraded_links import with_degraded_links

MACHINE = crossbar(4, "50 GB/s")


def test_each_name_has_its_share():
    slow = with_degraded_links(MACHINE, {"gpu0 <-> switch": 0.5, "switch -> gpu1": "1/4"})
    rates = [
        int(slow.link_capacity_uBps[slow.find_links(name)[0]]) // 10**15
        for name in ("gpu0 -> switch", "switch -> gpu0", "switch -> gpu1", "gpu1 -> switch")
    ]
    assert rates == [25, 25, 12, 50]


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        (
            {"gpu0 <-> switch": 0.5, "gpu0 -> switch": "1/4"},
            "two shares of its capacity: 0.5 by 'gpu0 <-> switch' and 1/4 by 'gpu0 -> switch';",
        ),
        ({"gpu2": 0, "switch -> gpu2": 0}, "link 'switch -> gpu2' has two shares"),
        (
            {"gpu0 -> switch": 1.5},
            "share of capacity of 'gpu0 -> switch': expected 0 to 1, got 1.5",
        ),
        (
            {"gpu0 -> switch": -1},
            "share of capacity of 'gpu0 -> switch': expected 0, or a positive",
        ),
        ({"gpu9 -> switch": 0.5}, "no vertex 'gpu9'"),
    ],
)
def test_what_is_refused(shares, says):
    with pytest.raises(ConfigError) as caught:
        with_degraded_links(MACHINE, shares)
    assert says in str(caught.value)
