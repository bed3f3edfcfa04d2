"""The state file of a stack."""

from pathlib import Path

import pytest

from laneway_local.state import StateFile


def test_nothing_is_left_of_a_write_that_a_kill_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateFile(tmp_path)
    state.change(complete=True)

    def killed(_fresh: Path, _path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        state.change(complete=False)
    assert len(list(tmp_path.iterdir())) == 2
    assert state.read().complete
    state.remove()
    assert list(tmp_path.iterdir()) == []
