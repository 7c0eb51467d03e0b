"""Signals that stop a run, and ranks that end with their launcher."""

import contextlib
import ctypes
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_STOPS = (signal.SIGINT, signal.SIGTERM)
_SAME = 2.0  # seconds after a signal in which another one counts as a copy of it
_VOTES = 1 << 32  # vote for SIGTERM; more than the votes of all ranks for SIGINT
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_POLL = 1.0  # seconds


class StopSignals:
    """Handles SIGINT and SIGTERM in a ``with`` block: the first signal requests a stop, a second
    one ends the process at once.

    A thread handles them, since the main thread handles none while it waits for another rank or
    for a device. To stop at the same step, ranks sum their :meth:`vote` and pass the sum to
    :meth:`agree`. A signal often arrives twice, from the system and from the launcher, so signals
    within two seconds of the first one, which calls ``on_first``, count as one.

    Attributes:
        exit_code: 0, or once :meth:`agree` has decided to stop, 130 for SIGINT and 143 for SIGTERM.
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.exit_code = 0
        self._on_first = on_first
        self._received: int | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._pipe, self._pipe_before = -1, -1

    def __enter__(self) -> "StopSignals":
        # Python allows only the main thread to set handlers. A shell makes background jobs
        # ignore SIGINT, which is kept, except under a launcher.
        if threading.current_thread() is threading.main_thread():
            received, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            self._pipe_before = signal.set_wakeup_fd(self._pipe)
            threading.Thread(target=self._act, args=(received,), daemon=True).start()
            for number in _STOPS:
                if signal.getsignal(number) != signal.SIG_IGN or _has_launcher():
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        if self.exit_code:
            return  # keep handling signals, which may arrive again while the process ends
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._pipe != -1:
            signal.set_wakeup_fd(self._pipe_before)
            os.close(self._pipe)

    def vote(self) -> int:
        """Return what this rank adds to the sum over ranks."""
        if self._received is None:
            return 0
        return _VOTES if self._received == signal.SIGTERM else 1

    def agree(self, votes: int) -> None:
        """Set :attr:`exit_code` from the sum of all votes."""
        if votes:
            number = signal.SIGTERM if votes >= _VOTES else signal.SIGINT
            self.exit_code = 128 + number

    def _note(self, number: int, frame: FrameType | None = None) -> None:
        if self._received is None:
            self._received = number

    def _act(self, pipe: int) -> None:
        """Handle signals, whose numbers Python writes to ``pipe``, until the block ends."""
        first = None
        with open(pipe, "rb", buffering=0) as received:
            while number := received.read(1):
                if number[0] not in _STOPS:
                    continue
                if first is None:
                    first = time.monotonic()
                    self._note(number[0])
                    self._on_first()
                    # Unbuffered: the signal may have interrupted a print.
                    if os.environ.get("RANK", "0") == "0":
                        name = signal.Signals(number[0]).name
                        text = f"\n{name}: saving after this step; repeat it to end at once\n"
                        os.write(2, text.encode())
                elif time.monotonic() - first > _SAME:
                    os._exit(128 + number[0])


def leave_signals_to_parent(worker: int) -> None:
    """Make a ``DataLoader`` worker ignore SIGINT, and SIGTERM unless its rank sends it.

    Launchers and terminals signal whole process groups. A worker that ended first would make its
    rank fail in the middle of a step.
    """
    signal.set_wakeup_fd(-1)  # the inherited descriptor belongs to its rank
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        threading.Thread(target=_end_for_parent, daemon=True).start()


def _end_for_parent() -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)


def end_with_launcher() -> None:
    """Make this rank end when its launcher ends, even if that is killed; with a wrapper between
    them, when the wrapper ends.

    Does nothing without a launcher (torchrun), so that a run outlives its shell.
    """
    if not _has_launcher():
        return
    if _LIBC is not None:
        set_parent_death_signal(signal.SIGKILL)
        parent = os.getppid()
        if not (_is_python(parent) or _is_of_session(parent)):  # the launcher has ended
            os._exit(128 + signal.SIGKILL)
    else:
        watch = threading.Thread(target=_watch, args=(os.getppid(),), daemon=True)
        watch.start()


def _is_python(process: int) -> bool:
    """Whether a process runs Python, as launchers do; true if unknown."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        return b"python" in command.split(b"\0")[0]
    except OSError:
        return True


def _is_of_session(process: int) -> bool:
    """Whether a process is of this rank's session, which torchrun starts: it wraps the rank."""
    try:
        return os.getsid(process) == os.getsid(0)
    except OSError:
        return False


def set_parent_death_signal(number: signal.Signals) -> None:
    """Set the signal that this process receives when its parent ends; Linux only."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL)
    os._exit(128 + signal.SIGTERM)


def _has_launcher() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def resuming_command(resume: str = "True") -> str:
    """Return the command that started this process, with ``resume_from_checkpoint`` set to
    ``resume``: ``auto`` if there may be no checkpoint.
    """
    words = [w for w in _command() if not w.startswith("resume_from_checkpoint=")]
    return shlex.join([*words, f"resume_from_checkpoint={resume}"])


def _command() -> Sequence[str]:
    """Return the command that the user typed, as far as it can be found out."""
    words = sys.orig_argv
    if _has_launcher():
        recipe = [Path(sys.argv[0]).parent.name, *sys.argv[1:]]
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None:
            recipe[0] = spec.parent
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        words = ["tune", "run", "--nproc_per_node", ranks, *recipe]
        with contextlib.suppress(OSError):  # no /proc
            line = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
            words = [word.decode(errors="replace") for word in line.split(b"\0")[:-1]]
    for i, word in enumerate(words[:2]):
        if Path(word).name == "tune":
            return ["tune", *words[i + 1 :]]
    return words
