"""Tells how far a download is, while it runs and when it ends."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fastgen_api.delivery import DeliveryField, DeliveryState
from fastgen_api.names import StartupFailure
from fastgen_runtime.log import log_event
from fastgen_runtime.sources.config_map import ConfigMap, SupersededError, UnreportedError
from fastgen_runtime.sources.delivery_fields import Fields, fields_of, is_worth_telling
from fastgen_runtime.sources.progress import Progress, every

REPORT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.5
_FIRST_WORD_SECONDS: Final = 30.0
_LAST_WORD_SECONDS: Final = 120.0
_LONGEST_WAIT_SECONDS: Final = 15.0


class DeliveryReport:
    """What a ConfigMap is told, and when. Nothing is told once it speaks of another model."""

    def __init__(self, config_map: ConfigMap, progress: Progress, root: Path) -> None:
        """root: the cache, which the model's path is relative to."""
        self._config_map = config_map
        self._progress = progress
        self._root = root
        self._last: Fields = {}
        self._last_at = -REPORT_SECONDS
        self._is_superseded = False

    def pinned(self, seconds: float = _FIRST_WORD_SECONDS) -> str | None:
        """The commit that an earlier run resolved this model to.

        None, too, when the API server has not answered for so many seconds: a download that has
        no pin is better than none.
        """
        told: Mapping[str, str] = {}

        def ask() -> None:
            nonlocal told
            told = self._config_map.told()

        _persist(ask, "what was resolved before is not known", seconds)
        revision = told.get(DeliveryField.REVISION)
        self._progress.pins(revision)
        return revision

    @contextmanager
    def running(self) -> Iterator[None]:
        """Tells of progress while the block lasts; what cannot be told holds up nothing."""
        with every(_POLL_SECONDS, self._tell, "download-report"):
            yield

    def _tell(self) -> None:
        fields = fields_of(self._progress.told, DeliveryState.DOWNLOADING, self._root)
        now = time.monotonic()
        if now < self._last_at + REPORT_SECONDS or not is_worth_telling(self._last, fields):
            return
        self._last_at = now
        try:
            self._merge(fields)
        except UnreportedError as error:
            log_event("progress cannot be reported", why=str(error))

    def end(
        self,
        state: DeliveryState,
        failure: tuple[StartupFailure, str] | None = None,
        seconds: float = _LAST_WORD_SECONDS,
    ) -> bool:
        """The last word; whether the API server took it, which is asked for so many seconds."""
        fields = fields_of(self._progress.told, state, self._root, failure)
        return _persist(lambda: self._merge(fields), "the last report is not taken", seconds)

    def _merge(self, fields: Fields) -> None:
        if self._is_superseded:
            return
        try:
            self._config_map.merge(fields)
        except SupersededError:
            self._is_superseded = True
            log_event("the ConfigMap speaks of another model by now: no more reports")
        self._last = fields


def _persist(work: Callable[[], None], complaint: str, seconds: float) -> bool:
    """Does it, again and again for so many seconds while the API server does not take it."""
    deadline = time.monotonic() + seconds
    wait = 1.0
    while True:
        try:
            work()
        except UnreportedError as error:
            log_event(complaint, why=str(error))
            if time.monotonic() + wait > deadline:
                return False
            time.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        else:
            return True
