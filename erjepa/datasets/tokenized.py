"""Tokenization of many pairs, in parallel, into compact arrays that are cached on disk.

The tokens depend only on the chats, the tokenizer and this code. Those of many pairs are cached
under a hash of the three, in the cache folder of ``datasets`` (``HF_DATASETS_CACHE``). One
process tokenizes while others wait, so the ranks of a run, or the runs of a grid, map the same
file.
"""

import contextlib
import hashlib
import inspect
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any, overload

import numpy as np
from torchtune import utils
from torchtune.data import Message
from tqdm import tqdm

from erjepa.datasets import chat_template
from erjepa.datasets.chat_template import ChatTemplate
from erjepa.datasets.pairs import Pair

log = utils.get_logger("INFO")

MANY = 4000  # tokenizing fewer pairs is faster than hashing and starting processes
_CHUNK = 500  # chats that a process takes at a time
_SEGMENTS = len(Pair._fields) - 1


class TokenizedPairs(Sequence[Pair]):
    """Sequence of pairs that are stored in flat arrays, and copied out when accessed.

    Args:
        blocks: one-dimensional int32 arrays: the number N of pairs, the lengths of N x 5
            segments, then their tokens.
    """

    def __init__(self, blocks: Iterable[np.ndarray]) -> None:
        self._blocks = list(blocks)
        self._starts = [0, *accumulate(int(block[0]) for block in self._blocks)]
        # Of each block: where its segments begin in its tokens, and the end.
        self._edges = [
            np.append(0, np.cumsum(_split(block)[0], dtype=np.int64))
            for block in self._blocks
        ]

    def __add__(self, other: "TokenizedPairs") -> "TokenizedPairs":
        """Concatenate pairs without copying their tokens; example ids continue."""
        return TokenizedPairs([*self._blocks, *other._blocks])

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in the segments of each pair, int32 [N, 5]."""
        lengths = [_split(block)[0] for block in self._blocks]
        return np.concatenate(lengths).reshape(-1, _SEGMENTS)

    @property
    def largest_token(self) -> int:
        """Largest token id of all pairs."""
        return max(int(_split(block)[1].max(initial=0)) for block in self._blocks)

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> list[Pair]: ...
    def __getitem__(self, index: int | slice) -> Pair | list[Pair]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = index + len(self) if index < 0 else index
        if not 0 <= i < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        at = bisect_right(self._starts, i) - 1
        _, tokens = _split(self._blocks[at])
        first = (i - self._starts[at]) * _SEGMENTS
        edges = self._edges[at][first : first + _SEGMENTS + 1]
        segments = (array("i", tokens[a:b].tobytes()) for a, b in pairwise(edges))
        return Pair(i, *segments)


def _split(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of the segments in a block, and their tokens."""
    first_token = 1 + int(block[0]) * _SEGMENTS
    return block[1:first_token], block[first_token:]


# A tokenized pair: the lengths of its segments, and the bytes of their tokens.
_Flat = tuple[list[int], bytes]


def tokenize(
    chats: Iterable[list[Message]],
    count: int,
    template: ChatTemplate,
    tokenizer: Any,
    where: Callable[[int], str],
) -> TokenizedPairs:
    """Tokenize chats into pairs.

    Args:
        chats: valid chats, see :meth:`~erjepa.datasets.ChatTemplate.validate`.

    Raises:
        RuntimeError: if a process is killed, as systems do when memory runs out.
        ValueError: naming the place of a chat that makes no pair.
    """
    if count < MANY:
        made = (_flat_or_error(template, chat) for chat in chats)
        return TokenizedPairs([_block(made, where)])
    # Read every chat before tokenizing the first, so that every rank finds an invalid one soon.
    texts = [
        json.dumps([[m.role, m.content, m.ipython, m.eot] for m in chat])
        for chat in chats
    ]
    make = partial(_in_parallel, texts, template, where)
    file = _cache_file(texts, tokenizer)
    return TokenizedPairs([make() if file is None else _cached(file, make)])


def _flat_or_error(template: ChatTemplate, chat: list[Message]) -> _Flat | str:
    """Tokenize a chat; return why it makes no pair if it makes none."""
    try:
        segments = template(chat)
    except ValueError as error:
        return str(error)
    return [len(s) for s in segments], b"".join(s.tobytes() for s in segments)


def _block(pairs: Iterable[_Flat | str], where: Callable[[int], str]) -> np.ndarray:
    lengths, tokens = array("i"), array("i")
    for i, pair in enumerate(pairs):
        if isinstance(pair, str):
            raise ValueError(f"{where(i)}: {pair}")
        lengths.extend(pair[0])
        tokens.frombytes(pair[1])
    parts = [array("i", [len(lengths) // _SEGMENTS]), lengths, tokens]
    return np.concatenate([np.frombuffer(p, dtype=np.int32) for p in parts])


# ------------------------------------------------------------------- in parallel


def _in_parallel(
    texts: Sequence[str], template: ChatTemplate, where: Callable[[int], str]
) -> np.ndarray:
    """Tokenize many chats into one block with several processes and a progress bar."""
    cores = (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    workers = min(cores, -(-len(texts) // _CHUNK))
    pool = ProcessPoolExecutor(workers, get_context(), _set_template, (template,))
    made = pool.map(_tokenize, texts, chunksize=_CHUNK)
    try:
        bar = tqdm(made, total=len(texts), desc="Tokenizing", unit="pair")
        return _block(bar, where)
    except BrokenProcessPool:
        raise RuntimeError(
            "a process that tokenized pairs was killed, probably for lack of memory; "
            "free some and start again"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_template: ChatTemplate  # set in each worker process


def _set_template(template: ChatTemplate) -> None:
    global _template
    _template = template


def _tokenize(text: str) -> _Flat | str:
    chat = [
        Message(role=role, content=content, ipython=ipython, eot=eot)
        for role, content, ipython, eot in json.loads(text)
    ]
    return _flat_or_error(_template, chat)


# ----------------------------------------------------------------------- on disk


def _cache_file(texts: Sequence[str], tokenizer: Any) -> Path | None:
    """Return the cache file for these chats; ``None`` if the tokenizer cannot be hashed."""
    import datasets
    from datasets.fingerprint import Hasher

    digest = hashlib.sha256()
    try:
        digest.update(Hasher.hash(tokenizer).encode())
    except Exception as error:  # pickling a custom tokenizer can raise any type
        log.warning(
            f"{type(tokenizer).__name__} cannot be hashed ({error}): its tokens are not cached."
        )
        return None
    for package in ("torchtune", "tokenizers", "tiktoken", "transformers"):
        with contextlib.suppress(PackageNotFoundError):
            digest.update(f"{package} {version(package)}".encode())
    code = {chat_template.__file__, __file__}
    for kind in type(tokenizer).__mro__:
        with contextlib.suppress(TypeError, OSError):  # built in, or typed in a shell
            code.add(inspect.getfile(kind))
    for file in sorted(code):
        digest.update(Path(file).read_bytes())
    for text in texts:
        digest.update(text.encode())
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "erjepa"
    return folder / f"{digest.hexdigest()[:32]}.npy"


def _cached(file: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the block in ``file``, memory-mapped; make it if it is absent or cut."""
    from filelock import FileLock

    if (block := _read(file)) is not None:
        return block
    aside = file.with_suffix(".new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # The system releases the lock if the process is killed.
        with FileLock(f"{file}.lock"):
            if (block := _read(file)) is None:  # no other process made it meanwhile
                block = make()
                with aside.open("wb") as output:
                    np.save(output, block)
                os.replace(aside, file)
                block = _read(file)
    except (OSError, NotImplementedError) as error:
        log.warning(f"{file} cannot be written ({error}): tokens are not cached.")
        with contextlib.suppress(OSError):
            aside.unlink()
    return make() if block is None else block


def _read(file: Path) -> np.ndarray | None:
    try:
        return np.load(file, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # absent or cut
        return None
