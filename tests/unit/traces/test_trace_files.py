"""Files of a trace: by one of them, their folder, or the beginning of their names."""

import pytest

from simcoll.errors import ConfigError
from simcoll.traces.trace_files import trace_files


@pytest.fixture
def folder(tmp_path):
    def made(*names):
        for name in names:
            (tmp_path / name).write_bytes(b"")
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("names", "start", "title", "order"),
    [
        (["t.0.et", "t.1.et", "u.0.et"], "t.1.et", "t", ["t.0.et", "t.1.et"]),
        (["t.0.et", "t.1.et"], "t", "t", ["t.0.et", "t.1.et"]),
        (["t.0.et", "t.1.et"], "t.et", "t", ["t.0.et", "t.1.et"]),
        (["t.0.et", "t.1.et", "notes.txt"], "", "t", ["t.0.et", "t.1.et"]),
        (["rank_0.et", "rank_1.et"], "rank_0.et", "rank", ["rank_0.et", "rank_1.et"]),
        (["et.0", "et.1"], "et.0", "et", ["et.0", "et.1"]),
        (["gpt3.0.et", "gpt3.1.et"], "gpt3.0.et", "gpt3", ["gpt3.0.et", "gpt3.1.et"]),
        ([f"t.{rank}.et" for rank in range(11)], "t.10.et", "t", None),
        (["resnet50.et"], "resnet50.et", "resnet50", ["resnet50.et"]),
        (["alone.et"], "alone.et", "alone", ["alone.et"]),
    ],
)
def test_files_in_order(folder, names, start, title, order):
    found = trace_files(folder(*names) / start)
    assert (found[0], [path.name for path in found[1]]) == (title, order or names)


@pytest.mark.parametrize(
    ("names", "start", "says"),
    [
        (["t.0.et", "t.2.et"], "t.0.et", "rank 1 is missing; there are those of 2 ranks"),
        (["t.1.et"], "t.1.et", "rank 0 is missing; there are those of 1 rank"),
        (["t.0.et", "t.00.et"], "t.0.et", "two files of rank 0: t.0.et and t.00.et"),
        (["t.0.et", "u.0.et"], "", "a folder of 2 traces: t.0.et, u.0.et; name a file of one"),
        (["notes.txt"], "", "a folder without files such as trace.0.et"),
        (["t.0.et"], "u.0.et", "there is no such file, nor u.0.0.et"),
        (["step.toml"], "step.tom", "so on; did you mean 'step.toml'?"),
        (["steps.toml"], "step.toml", "there is no such file; did you mean 'steps.toml'?"),
    ],
)
def test_what_is_refused(folder, names, start, says):
    with pytest.raises(ConfigError) as caught:
        trace_files(folder(*names) / start)
    assert says in str(caught.value)
