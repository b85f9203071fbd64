"""Clocks that programs read beside those of ``time``."""

import copy
import datetime as dt
import pickle
import time
import timeit

import pytest

from tests.support.deferred import Deferred, needs_torch

torch = Deferred("torch")
backend, clocks = Deferred("simcoll.torch"), Deferred("simcoll.torch.clocks")

pytestmark = needs_torch


def of_datetime():
    start = dt.datetime.now()  # noqa: DTZ005  # as scripts do
    time.sleep(0.5)
    return (dt.datetime.now() - start).total_seconds()  # noqa: DTZ005


def of_utc():
    start = dt.datetime.now(dt.UTC)
    time.sleep(0.5)
    return (dt.datetime.now(dt.UTC) - start).total_seconds()


def of_the_system():
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    time.sleep(0.5)
    return time.clock_gettime(time.CLOCK_MONOTONIC) - start


def of_timeit():
    return timeit.timeit(lambda: time.sleep(0.25), number=2)


def of_the_default_timer():
    start = timeit.default_timer()
    time.sleep(0.5)
    return timeit.default_timer() - start


def of_pytorchs_benchmark():
    from torch.utils.benchmark import Timer

    return Timer("sleep(0.5)", globals={"sleep": time.sleep}).timeit(1).median


@pytest.mark.slow
@pytest.mark.parametrize(
    "clock",
    [of_datetime, of_utc, of_the_system, of_timeit, of_the_default_timer, of_pytorchs_benchmark],
)
def test_clocks_show_simulated_time(clock):
    result = backend.spawn(lambda *_: clock(), 2)
    assert result.returns == pytest.approx((0.5, 0.5), abs=1e-5)


def test_moments_of_a_run_are_those_of_datetime():
    earlier = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)

    def body(_rank, _world_size):
        now = dt.datetime.now(dt.UTC)
        parsed = dt.datetime.strptime("2020-01-01 +0000", "%Y-%m-%d %z")
        for moment in (now, earlier, parsed):
            assert isinstance(moment, dt.datetime)
            assert pickle.loads(pickle.dumps(moment)) == copy.deepcopy(moment) == moment
        assert parsed == earlier < now
        assert issubclass(type(earlier), dt.datetime)
        return now

    kind = dt.datetime
    (now,) = backend.spawn(body, 1).returns
    assert dt.datetime is kind
    assert isinstance(now, kind)
    assert type(pickle.loads(pickle.dumps(now))) is kind
    assert abs(now - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=5)


def test_a_gpu_that_sleeps_takes_simulated_time():
    def body(_rank, _world_size):
        torch.cuda._sleep(1000)
        return backend.emulated_time()

    assert backend.spawn(body, 1, cuda_is_cpu=True).returns == (1e-6,)


def test_modules_in_c_are_loaded_with_the_class_that_c_code_knows():
    def program(_rank, _world_size):
        step = clocks._with_moments_of_c(lambda: dt.datetime)
        of_c = type(dt.datetime.min)  # noqa: DTZ901
        return step() is of_c, dt.datetime is of_c

    assert backend.spawn(program, 1).returns == ((True, False),)
