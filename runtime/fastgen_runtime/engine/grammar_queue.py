"""Grammars of new requests are compiled in a thread of their own, so that no step waits for one."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from fastgen_runtime.engine.grammar import GrammarCompiler, GrammarConstraint, GrammarError
from fastgen_runtime.engine.request import Grammar, NewRequest, Refusal, RefusalKind
from fastgen_runtime.log import log_event


@dataclass(slots=True)
class _Group:
    """Requests that want the same, as the choices of one response do: compiled once."""

    grammar: Grammar
    waiting: deque[NewRequest] = field(default_factory=deque)
    compiled: GrammarConstraint | Refusal | None = None


class GrammarQueue:
    """Requests whose grammars are being compiled; groups of them take turns.

    `load` is called once, in the thread, at once.
    """

    def __init__(self, load: Callable[[], GrammarCompiler]) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._compiler = self._pool.submit(load)
        self._lock = Lock()  # for the groups, which both threads change
        self._groups: dict[tuple[str, Grammar], _Group] = {}
        self._compiling: dict[str, NewRequest] = {}
        self._ready: deque[tuple[NewRequest, GrammarConstraint | Refusal]] = deque()
        self._failures: deque[tuple[str, str]] = deque()

    def __len__(self) -> int:
        return len(self._compiling)

    def wait_until_loaded(self) -> None:
        """Returns when `load` has ended, well or not: while it runs no other Python code does."""
        self._compiler.exception()

    def add(self, new: NewRequest) -> None:
        """Begins to compile a request's grammar; raises ValueError when it has none."""
        if new.grammar is None:
            raise ValueError(f"request {new.request_id} has no grammar")
        self._compiling[new.request_id] = new
        key = new.group or new.request_id, new.grammar
        with self._lock:
            self._groups.setdefault(key, _Group(new.grammar)).waiting.append(new)
        self._pool.submit(self._take_turn)

    def abort(self, request_id: str) -> None:
        """Forgets a request; an unknown one is here no more."""
        new = self._compiling.pop(request_id, None)
        if new is None or new.grammar is None:
            return
        key = new.group or new.request_id, new.grammar
        with self._lock:
            group = self._groups.get(key)
            if group is not None and new in group.waiting:
                group.waiting.remove(new)

    def take_ready(self) -> list[tuple[NewRequest, GrammarConstraint | Refusal]]:
        """The requests whose grammars are compiled, or cannot be; each is told once."""
        ready = []
        while self._ready:
            new, compiled = self._ready.popleft()
            if self._compiling.pop(new.request_id, None) is not None:
                ready.append((new, compiled))
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

    def _take_turn(self) -> None:
        """Serves a request of the group whose turn it is; others are first the next time."""
        with self._lock:
            while self._groups:
                key = next(iter(self._groups))
                group = self._groups.pop(key)
                if group.waiting:
                    break
            else:
                return
            self._groups[key] = group
            new = group.waiting.popleft()
        if group.compiled is None:
            group.compiled = self._compile(group.grammar, new)
        if isinstance(group.compiled, Refusal):
            self._ready.append((new, group.compiled))
        else:
            tell_failure = partial(self._note_failure, new.request_id)
            self._ready.append((new, group.compiled.copy(tell_failure)))
        with self._lock:
            if not group.waiting:
                del self._groups[key]

    def _compile(self, grammar: Grammar, new: NewRequest) -> GrammarConstraint | Refusal:
        try:
            tell_failure = partial(self._note_failure, new.request_id)
            return self._compiler.result().compile(grammar, tell_failure)
        except GrammarError as error:
            return Refusal(RefusalKind.INVALID, f"the grammar {error}")
        except BaseException as error:
            # Whatever a grammar brings about in the library, panics too, which are no Exception:
            # it is the end of its own request only.
            log_event("grammar not compiled", request_id=new.request_id, error=repr(error))
            return Refusal(RefusalKind.INVALID, "the grammar cannot be compiled")

    def _note_failure(self, request_id: str, problem: str) -> None:
        self._failures.append((request_id, problem))
