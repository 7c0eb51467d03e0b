"""NL-RX from every source, and the project's own grammar, give pairs."""

import functools
import http.server
import threading

import datasets
import pytest

from erjepa.tasks.nl_rx.dataset import nl_rx_dataset, synthetic_nl_rx_dataset
from tests.harness.data import REAL_DATA, write_records


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A folder, and the URL at which it is served."""
    for cache in ("HF_DATASETS_CACHE", "DOWNLOADED_DATASETS_PATH"):
        monkeypatch.setattr(datasets.config, cache, str(tmp_path / "cache"))
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=tmp_path
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield tmp_path, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_url_gives_the_pairs_of_its_file(tokenizer, served):
    folder, url = served
    write_records(folder / "synth_train.jsonl", 5)
    local = nl_rx_dataset(tokenizer, source=str(folder))
    remote = nl_rx_dataset(tokenizer, source=url)
    assert list(remote) == list(local) and len(remote) == 5
    assert remote.task == "nl_rx"
    assert remote.where(3) == f"{url}/synth_train.jsonl:4"


def test_a_url_that_cannot_be_read(tokenizer, served):
    with pytest.raises(
        ConnectionError, match="turk_test.jsonl could not be read .* copy"
    ):
        nl_rx_dataset(tokenizer, source=served[1], subset="turk", split="test")


def test_synthetic_pairs_say_where_they_come_from(tokenizer):
    train = synthetic_nl_rx_dataset(tokenizer, size=20)
    test = synthetic_nl_rx_dataset(tokenizer, size=20, split="test")
    assert len(train) == len(test) == 20 and train.task == "nl_rx"
    assert test.where(3) == "nl_rx_grammar[test, seed 0][3]"
    texts = [{d.target_text(i) for i in range(20)} for d in (train, test)]
    assert not texts[0] & texts[1]


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="needs the real NL-RX")
@pytest.mark.parametrize("subset", ["synth", "turk"])
@pytest.mark.parametrize(("split", "size"), [("train", 8000), ("test", 2000)])
def test_real_nl_rx(tokenizer, subset, split, size):
    dataset = nl_rx_dataset(
        tokenizer, subset=subset, split=split, source=str(REAL_DATA / "nl_rx")
    )
    assert len(dataset) == size
    for i in (0, size - 1):
        # One token a byte: the target's tokens spell the target.
        assert bytes(list(dataset[i].target[:-1])).decode() == dataset.target_text(i)
        spelled = bytes(t for t in dataset[i].source_view if t < 256).decode()
        assert spelled.endswith(dataset.source_text(i))
