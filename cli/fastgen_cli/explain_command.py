"""The command `explain`."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec
from rich.console import Console

from fastgen_cli.cluster_reads import Reader, with_reader
from fastgen_cli.explain import Explanation, explain
from fastgen_cli.explain_read import read_facts
from fastgen_cli.explain_screen import show
from fastgen_cli.kubeconfig import Target

NOT_READY: Final = 1
"""Exit code when the FastGenDeployment was explained and is not ready."""


class Output(StrEnum):
    TEXT = "text"
    JSON = "json"


def explain_name(name: str, target: Target, output: Output, console: Console) -> int:
    """Prints why; the exit code: 0 when it is ready, 1 when it is not. Raises UserError."""

    async def ask(reader: Reader) -> Explanation:
        return explain(await read_facts(reader, name, target), datetime.now(UTC))

    found = with_reader(target, ask)
    if output is Output.JSON:
        text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
        console.out(text, highlight=False)
    else:
        show(found, console)
    return 0 if found.ready else NOT_READY
