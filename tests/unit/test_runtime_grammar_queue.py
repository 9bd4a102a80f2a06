"""The thread that compiles grammars: who is told what, and in which order."""

import threading
from collections.abc import Callable

from byte_words import END, STOP, TOKENIZER, WORDS, allowed

from fastgen_runtime.engine.grammar import GrammarCompiler, GrammarConstraint, GrammarError
from fastgen_runtime.engine.grammar_queue import GrammarQueue
from fastgen_runtime.engine.request import Grammar, GrammarKind, NewRequest, Refusal, RefusalKind
from fastgen_runtime.engine.step import Sampling

REGEX = GrammarKind.REGEX
COMPILER = GrammarCompiler(TOKENIZER, {END, STOP})


def request(name: str, text: str, group: str = "") -> NewRequest:
    return NewRequest(name, [1], 4, Sampling(), grammar=Grammar(REGEX, text), group=group)


class Recorder(GrammarCompiler):
    """Tells what it has compiled, and begins when it is let."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER, {END, STOP})
        self.may_begin = threading.Event()
        self.texts: list[str] = []

    def compile(self, grammar: Grammar, tell_failure: Callable[[str], None]) -> GrammarConstraint:
        self.may_begin.wait(10)
        self.texts.append(grammar.text)
        return super().compile(grammar, tell_failure)


def test_choices_are_compiled_once_and_wait_behind_others() -> None:
    compiler = Recorder()
    queue = GrammarQueue(lambda: compiler)
    for number in range(8):
        queue.add(request(f"many.{number}", "a|bc", group="many"))
    queue.add(request("bad.0", "(", group="bad"))
    queue.add(request("bad.1", "(", group="bad"))
    queue.add(request("gone", "gone"))
    queue.add(request("alone", "a|bc"))
    queue.abort("gone")
    queue.abort("many.7")
    compiler.may_begin.set()
    told: dict[str, GrammarConstraint | Refusal] = {}
    while len(queue):
        told |= {new.request_id: what for new, what in queue.take_ready()}
    order = list(told)
    assert order[:3] == ["many.0", "bad.0", "alone"]
    assert sorted(order) == ["alone", "bad.0", "bad.1", *(f"many.{number}" for number in range(7))]
    assert compiler.texts == ["a|bc", "(", "a|bc"], "not the one of whom nobody waits for"
    choices = [what for name, what in told.items() if name.startswith("many")]
    for choice in choices:
        assert isinstance(choice, GrammarConstraint)
        assert allowed(choice) == {"a", "b"}
        assert choice.accept(WORDS.index("b")) is False
    assert isinstance(told["many.3"], GrammarConstraint)
    told["many.3"].accept(WORDS.index("d"))
    assert [name for name, _ in queue.take_failed()] == ["many.3"]
    queue.close()


def test_the_queue_compiles_refuses_and_forgets() -> None:
    loaded = threading.Event()

    def load() -> GrammarCompiler:
        loaded.wait(10)
        return COMPILER

    queue = GrammarQueue(load)
    for name, text in (("good", "abc"), ("bad", "("), ("gone", "abc")):
        queue.add(request(name, text))
    assert queue.take_ready() == []
    queue.abort("gone")
    queue.abort("unknown")
    assert len(queue) == 2
    loaded.set()
    queue.wait_until_loaded()
    told: dict[str, GrammarConstraint | Refusal] = {}
    while len(queue):
        told |= {new.request_id: what for new, what in queue.take_ready()}
    assert isinstance(told["good"], GrammarConstraint)
    assert isinstance(told["bad"], Refusal)
    assert told["bad"].kind is RefusalKind.INVALID
    assert told["bad"].message == (
        "the grammar is no regular expression that can be used: unclosed group"
    )
    assert set(told) == {"good", "bad"}
    assert queue.take_failed() == []
    told["good"].accept(WORDS.index("d"))
    ((failed, refusal),) = queue.take_failed()
    assert failed == "good"
    assert refusal.kind is RefusalKind.INVALID
    queue.close()


def test_requests_with_a_grammar_are_refused_where_the_tokenizer_does_not_allow_it() -> None:
    def load() -> GrammarCompiler:
        raise GrammarError("cannot be used with this model's tokenizer: unknown kind")

    queue = GrammarQueue(load)
    queue.wait_until_loaded()
    queue.add(request("a", "abc"))
    while not (ready := queue.take_ready()):
        pass
    assert isinstance(ready[0][1], Refusal)
    assert "this model's tokenizer" in ready[0][1].message
    queue.close()
