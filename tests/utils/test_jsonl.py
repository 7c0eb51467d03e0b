"""JSON lines as they are written and read."""

import pytest

from erjepa.utils.jsonl import read_jsonl, to_jsonl


@pytest.mark.parametrize(
    "text", ["Größe, 大きさ", "a\u2028b\u0085c", "two\nlines", "\ud83d"]
)
def test_every_text_survives(tmp_path, text):
    path = tmp_path / "rows.jsonl"
    rows = [{"text": text}, {"text": "next"}]
    path.write_text(to_jsonl(rows), encoding="utf-8")
    assert [row for _, row in read_jsonl(path)] == rows


def test_texts_can_be_searched():
    assert to_jsonl([{"text": "Größe"}]) == '{"text": "Größe"}\n'
