"""The tier of a step where none is requested."""

from pathlib import Path

import pytest

from simcoll.cli import main, step_command

DESIGN = Path(__file__).parents[3] / "docs" / "howto" / "llama-8b.toml"


@pytest.mark.slow
@pytest.mark.parametrize(("most", "tier"), [(16, 2), (15, 1)])
def test_a_large_step_times_collectives_once_each(most, tier, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(step_command, "MOST_TOGETHER", most)
    assert not main(["step", str(DESIGN), "-o", str(tmp_path)])
    output = capsys.readouterr().out
    assert f"16 GPUs, tier {tier}" in output
    assert ("# tier 1: more than 15 GPUs" in output) == (tier == 1)
