"""Which tokens the next step computes.

There are no phases: a request owes tokens, and a step hands out pieces of what is owed from one
budget. Requests that owe one token come first, then prompts fill the rest: Dynamic SplitFuse
(Holmes et al., DeepSpeed-FastGen, arXiv 2401.08671, section 3).
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fastgen_api.spec import BudgetMode, Speculation
from fastgen_runtime.engine.blocks import BlockPool, blocks_for
from fastgen_runtime.engine.budget import Budget
from fastgen_runtime.engine.outlook import LengthHistory, Outlook
from fastgen_runtime.engine.request import Request, Turn


@dataclass(frozen=True, slots=True)
class Limits:
    """budget_tokens: most tokens of a step. max_running: most requests that hold blocks.
    max_waiting: length of the queue. max_length: most tokens of a request, prompt and output.
    expected_output_tokens: how long an answer is taken to become before any have ended.
    budget_mode: Auto makes steps smaller where running streams would fall behind their pace.
    prefix_caching: whether requests find the blocks of what others began with. speculation: how
    tokens are guessed before they are computed.
    """

    budget_tokens: int
    max_running: int
    max_waiting: int
    max_length: int
    expected_output_tokens: int = 256
    budget_mode: BudgetMode = BudgetMode.FIXED
    prefix_caching: bool = True
    speculation: Speculation = Speculation.NONE

    def __post_init__(self) -> None:
        # Each running request must get its token in each step, whatever the others do.
        if not 1 <= self.max_running <= self.budget_tokens:
            raise ValueError("max_running must lie between 1 and budget_tokens")
        if self.max_length < 2 or self.max_waiting < 0 or self.expected_output_tokens < 1:
            raise ValueError("limits must be positive")


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that is let in, and the blocks that it finds in the prefix cache."""

    request: Request
    block_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What `schedule` decided: whom to let go, whom to let in, and each one's number of tokens.

    budget_tokens: the most tokens that the step could have had.
    """

    preempted: tuple[Request, ...]
    admitted: tuple[Admission, ...]
    pieces: tuple[tuple[Request, int], ...]
    budget_tokens: int


def schedule(
    running: Sequence[Request],
    waiting: Iterable[Request],
    pool: BlockPool,
    limits: Limits,
    budget: Budget,
    history: LengthHistory,
    shared: Collection[int] = (),
) -> Plan:
    """Plans one step; nothing is changed. shared: blocks that running requests found in the cache.

    `running` and `waiting` come in order: the most important first, then whose first token is due
    first: short prompts pass long ones whose targets leave them time, and none waits for ever. Some
    request always gets a token while there is any: of the most important ones that with most to
    recompute is never preempted for another, and no request is larger than the pool.
    """
    draft = _Draft(running, pool, limits, budget, history, shared)
    prompts = []
    for request in running:
        if request.num_owed > 1:
            prompts.append(request)
            draft.note_making(request)
        elif not draft.give_one(request):
            draft.give(request)
    next_prompt = 0
    # After a preemption there is no room: letting others in would only preempt again.
    for request in () if draft.preempted else waiting:
        while next_prompt < len(prompts) and prompts[next_prompt].order <= request.order:
            draft.give(prompts[next_prompt])
            next_prompt += 1
        if draft.preempted or not draft.admit(request):
            break
    for request in prompts[next_prompt:]:
        draft.give(request)
    return Plan(
        tuple(draft.preempted),
        tuple(Admission(request, block_ids) for request, block_ids in draft.admitted.items()),
        tuple(draft.pieces.items()),
        draft.budget_tokens,
    )


class _Draft:
    """A plan in the making; blocks are counted, not taken."""

    def __init__(
        self,
        running: Sequence[Request],
        pool: BlockPool,
        limits: Limits,
        budget: Budget,
        history: LengthHistory,
        shared: Collection[int],
    ) -> None:
        self.pieces: dict[Request, int] = {}
        self.admitted: dict[Request, tuple[int, ...]] = {}
        # Dicts, for their order and for quick look-ups.
        self.preempted: dict[Request, None] = {}
        # What is being computed, and the turn of the request that does.
        self._making: dict[bytes, Turn] = {}
        self._running = dict.fromkeys(running)
        self._pool = pool
        self._block_size = pool.block_size
        self._free = pool.num_free
        self._dropped: dict[int, int] = {}
        self._limits = limits
        self._history = history
        self._outlook: Outlook | None = None
        self._shared = shared
        self._claimed: set[int] = set()
        self._tokens = budget.tokens
        self._cost = budget.cost
        self._least_prompt_tokens = budget.least_prompt_tokens
        self._seconds = None if budget.seconds is None else budget.seconds - budget.cost.base

    @property
    def budget_tokens(self) -> int:
        """What was given, and what could be given to one more prompt."""
        return sum(self.pieces.values()) + self._affordable(0)

    def give_one(self, request: Request) -> bool:
        """Gives an answer under way its token if its last block has room; most of them have."""
        start = request.num_computed
        if start >= len(request.block_ids) * self._block_size or request in self.preempted:
            return False
        self.pieces[request] = 1
        self._tokens -= 1
        if self._seconds is not None:
            cost = self._cost
            self._seconds -= cost.per_request + cost.per_token + cost.per_attended * (start + 1)
        return True

    def give(self, request: Request) -> None:
        """Gives a running request as much of what it owes as budget and blocks allow."""
        if request in self.preempted:
            return
        owed = request.num_owed
        wanted = owed if owed == 1 else min(owed, self._affordable(request.num_computed))
        if wanted < 1 or self._tokens < 1:
            return
        # A prompt makes do with the free blocks; an answer under way, or the only one left to
        # make progress, may take another's.
        while self._room(request) < 1 and (owed == 1 or not self.pieces):
            victim = self._victim(request)
            self._preempt(victim)
            if victim is request:
                return
        self._take(request, min(wanted, self._room(request)))

    def admit(self, request: Request) -> bool:
        """Lets a waiting request in if it has its turn; False: nobody behind it, either."""
        if len(self._running) >= self._limits.max_running:
            return False
        if self._is_in_the_making(request):
            return True
        block_ids = self._pool.match(request.digests, request.num_matchable(self._block_size))
        num_computed = len(block_ids) * self._block_size
        if self._affordable(num_computed) < 1:
            return False
        new = {i for i in block_ids if i not in self._claimed and i not in self._shared}
        # A running request made these, and they were its own until now.
        held = {i for i in new if self._pool.num_references(i)}
        if self._outlook is None or held:
            self._outlook = self._foresee(held)
        num_idle = len(new) - len(held)
        fits = self._outlook.fits(request, len(block_ids), num_idle, self._pool.num_blocks)
        if self._running and not fits:
            return False
        self._free -= num_idle
        self._claimed |= new
        self._outlook.add(request, len(block_ids), num_idle)
        self._running[request] = None
        self.admitted[request] = block_ids
        self.note_making(request)
        wanted = min(len(request.token_ids) - num_computed, self._affordable(num_computed))
        self._take(request, min(wanted, self._room(request)))
        return True

    def _foresee(self, held: set[int]) -> Outlook:
        """What running and admitted requests will hold; `held`: blocks that become shared now."""
        shared = self._claimed.union(self._shared, held)
        requests = [
            (one, sum(map(shared.__contains__, self.admitted.get(one, one.block_ids))))
            for one in self._running
        ]
        return Outlook(requests, self._history, self._block_size, len(shared))

    def _is_in_the_making(self, request: Request) -> bool:
        """Whether a running request's next block is one that the request needs and nobody has.

        Then it waits: the block comes with this step, or with one of the next. Not for one whose
        turn is later, which others may hold up.
        """
        if not self._making:
            return False
        needed = request.digests[: request.num_matchable(self._block_size)]
        return any(self._making[i] <= request.order for i in self._making.keys() & needed)

    def note_making(self, request: Request) -> None:
        """Notes the block that a running request computes next, if nobody has it."""
        index = self._num_computed(request) // self._block_size
        if index < len(request.digests) and self._pool.find(request.digests[index]) is None:
            digest = request.digests[index]
            self._making[digest] = min(request.order, self._making.get(digest, request.order))

    def _num_computed(self, request: Request) -> int:
        return request.num_computed + self._block_size * len(self.admitted.get(request, ()))

    def _affordable(self, start: int) -> int:
        """The largest piece of a prompt, from `start` on, for which there is budget."""
        if self._seconds is None or self._tokens < 1:
            return self._tokens
        within = self._cost.tokens_within(self._seconds, start, self._tokens)
        return min(self._tokens, max(within, self._least_prompt_tokens))

    def _take(self, request: Request, piece: int) -> None:
        if piece < 1:
            return
        self._free -= self._needed(request, piece) - self._held(request)
        self.pieces[request] = piece
        self._tokens -= piece
        if self._seconds is not None:
            self._seconds -= self._cost.chunk_seconds(self._num_computed(request), piece)
            if request.num_owed > 1 or request in self.admitted:
                self._least_prompt_tokens = max(0, self._least_prompt_tokens - piece)

    def _held(self, request: Request) -> int:
        return len(request.block_ids) or len(self.admitted.get(request, ()))

    def _room(self, request: Request) -> int:
        """Positions that the request's own and all free blocks have left."""
        blocks = self._held(request) + self._free
        return blocks * self._block_size - self._num_computed(request)

    def _needed(self, request: Request, piece: int) -> int:
        """Blocks that the request holds after this piece."""
        needed = blocks_for(self._num_computed(request) + piece, self._block_size)
        return max(needed, self._held(request))

    def _victim(self, needy: Request) -> Request:
        """Whom to preempt for `needy`: no more important one, the cheapest to compute again."""
        holders = (
            other
            for other in self._running
            if other is needy or other.block_ids or other in self.pieces
        )
        return min(holders, key=lambda one: (-one.priority, self._lost_tokens(one), -one.arrival))

    def _lost_tokens(self, request: Request) -> int:
        """Tokens that the request would compute again; what others hold, too, stays cached.

        One that holds nothing by itself is no cheap victim: nothing would become free.
        """
        kept = sum(
            self._pool.num_references(i) - self._dropped.get(i, 0) > 1 for i in request.block_ids
        )
        lost = request.num_computed - kept * self._block_size
        return lost if lost > 0 else request.num_computed

    def _preempt(self, victim: Request) -> None:
        """Takes a running request's piece and blocks; its shared ones are free with the last."""
        piece = self.pieces.pop(victim, 0)
        self._tokens += piece
        self._free += self._needed(victim, piece) - self._held(victim)
        for block_id in victim.block_ids:
            self._dropped[block_id] = self._dropped.get(block_id, 0) + 1
            if self._dropped[block_id] == self._pool.num_references(block_id):
                self._free += 1
        del self._running[victim]
        self.preempted[victim] = None
