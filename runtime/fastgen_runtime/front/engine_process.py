"""The front's handle on the engine process: starts it, and knows how it ended."""

import asyncio
import signal
import sys
from typing import Final

import msgspec

from fastgen_api.names import StartupFailure
from fastgen_runtime.config import EngineConfig
from fastgen_runtime.startup_error import StartupError

_STOP_SECONDS: Final = 5.0


class EngineProcess:
    """A running engine process; it ends when its front does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, config: EngineConfig) -> "EngineProcess":
        """A fresh interpreter, which inherits the log and the environment."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "fastgen_runtime.engine_main",
            msgspec.json.encode(config).decode(),
            stdin=asyncio.subprocess.DEVNULL,
        )
        return cls(process)

    async def wait(self) -> str:
        """Waits for its end, and says in words how it ended."""
        code = await self._process.wait()
        if code < 0:
            return f"the engine process was killed by {signal.Signals(-code).name}"
        return f"the engine process ended with exit code {code}"

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it, so that it had no time for last words."""
        return self._process.returncode is not None and self._process.returncode < 0

    def why_not_started(self, words: str) -> StartupError:
        """The error of an engine that ended, as `wait` says, before it was ready."""
        if self._process.returncode == -signal.SIGKILL:
            return StartupError(
                StartupFailure.OUT_OF_MEMORY,
                f"{words} while it loaded the model: most likely the memory limit is too low",
            )
        return StartupError(StartupFailure.ENGINE_FAILED, f"{words} while it loaded the model")

    async def stop(self) -> None:
        """Waits for an end that was asked for; kills it when that takes too long."""
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
