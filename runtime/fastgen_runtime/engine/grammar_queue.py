"""Grammars of new requests are compiled in a thread of their own, so that no step waits for one."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from fastgen_runtime.engine.grammar import GrammarCompiler, GrammarConstraint, GrammarError
from fastgen_runtime.engine.request import NewRequest, Refusal, RefusalKind
from fastgen_runtime.log import log_event


class GrammarQueue:
    """Requests whose grammars are being compiled, in the order of their arrival.

    `load` is called once, in the thread, at once.
    """

    def __init__(self, load: Callable[[], GrammarCompiler]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiler = self._pool.submit(load)
        self._compiling: dict[str, tuple[NewRequest, Future[GrammarConstraint]]] = {}
        self._failures: deque[tuple[str, str]] = deque()

    def __len__(self) -> int:
        return len(self._compiling)

    def wait_until_loaded(self) -> None:
        """Returns when `load` has ended, well or not: while it runs no other Python code does."""
        self._compiler.exception()

    def add(self, new: NewRequest) -> None:
        """Begins to compile a request's grammar."""
        self._compiling[new.request_id] = new, self._pool.submit(self._compile, new)

    def abort(self, request_id: str) -> None:
        """Forgets a request; an unknown one is here no more."""
        found = self._compiling.pop(request_id, None)
        if found is not None:
            found[1].cancel()

    def take_ready(self) -> list[tuple[NewRequest, GrammarConstraint | Refusal]]:
        """The requests whose grammars are compiled, or cannot be; each is told once."""
        ready: list[tuple[NewRequest, GrammarConstraint | Refusal]] = []
        for new, future in list(self._compiling.values()):
            if not future.done():
                continue
            del self._compiling[new.request_id]
            error = future.exception()
            ready.append((new, future.result() if error is None else _refusal(new, error)))
        return ready

    def take_failed(self) -> list[tuple[str, Refusal]]:
        """Request ids whose outputs cannot be completed, since their grammars cost too much."""
        failed = []
        while self._failures:
            request_id, problem = self._failures.popleft()
            failed.append((request_id, Refusal(RefusalKind.INVALID, f"the grammar {problem}")))
        return failed

    def close(self) -> None:
        """Ends the thread after what it is compiling."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, new: NewRequest) -> GrammarConstraint:
        if new.grammar is None:
            raise ValueError(f"request {new.request_id} has no grammar")
        tell_failure = partial(self._note_failure, new.request_id)
        return self._compiler.result().compile(new.grammar, tell_failure)

    def _note_failure(self, request_id: str, problem: str) -> None:
        self._failures.append((request_id, problem))


def _refusal(new: NewRequest, error: BaseException) -> Refusal:
    if isinstance(error, GrammarError):
        return Refusal(RefusalKind.INVALID, f"the grammar {error}")
    # Whatever a grammar brings about in the library: it is the end of its own request only.
    log_event("grammar not compiled", request_id=new.request_id, error=repr(error))
    return Refusal(RefusalKind.INVALID, "the grammar cannot be compiled")
