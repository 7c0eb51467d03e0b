"""The tokens of stored pairs take little memory."""

import sys
import tracemalloc

from erjepa.replay.segments import SegmentStore


def test_a_token_costs_four_bytes():
    store, tokens = SegmentStore(1000), list(range(50))
    tracemalloc.start()
    store.write(range(1000), [(tokens, tokens)] * 1000)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    of_a_pair = 40 if sys.version_info < (3, 14) else 42
    assert used < 1000 * (4 * 100 + of_a_pair)
