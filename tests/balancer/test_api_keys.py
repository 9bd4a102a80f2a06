"""API keys at the real Envoy: who has one is served, and a key changes without a restart."""

import asyncio
import contextlib
import json
from pathlib import Path

import grpc
import httpx2
import pytest
from balancer_process import Balancer, prompt_of
from mounted_secret import MountedSecret
from openai import AsyncOpenAI, AuthenticationError
from small_replica import Replica, serving

from fastgen_api.names import BALANCER_HEALTH_PATH, Header, Metric
from fastgen_api.v1 import inference_pb2_grpc

from .conftest import Balance

KEYS = {"alice": "sk-alice-1\n", "bob": "sk-bob-1"}
BODY = {"prompt": "", "max_tokens": 1}


def arguments(secret: MountedSecret) -> dict[str, tuple[str, ...]]:
    given = ("--api-keys", str(secret.folder))
    return {"arguments": given, "bootstrap_arguments": given}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def status(http: httpx2.AsyncClient, balancer: Balancer, key: str) -> int:
    answer = await http.post(f"{balancer.url}/v1/completions", json=BODY, headers=bearer(key))
    return answer.status_code


async def call(balancer: Balancer, *metadata: tuple[str, str]) -> grpc.StatusCode:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        answer = stub.Generate(prompt_of("", 1), metadata=metadata)
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for _ in answer:
                pass
        return await answer.code()


async def test_only_a_key_of_the_secret_is_served(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    secret = MountedSecret(tmp_path / "secret", KEYS)
    one = Replica("one")
    async with serving(one) as a, balance(a, **arguments(secret)) as balancer:
        url = f"{balancer.url}/v1/completions"
        wrong: list[dict[str, str]] = [
            {}, bearer("sk-alice-2"), {"authorization": "Bearer"}, bearer("sk-alice-1x"),
            {"x-api-key": "sk-bob-1"},
        ]  # fmt: skip
        for headers in wrong:
            answer = await http.post(url, json=BODY, headers=headers)
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == ("invalid_api_key", "invalid_request_error")
        assert (await http.get(f"{balancer.url}/v1/models")).status_code == 401
        assert not one.seen, "refused before the picker and the replica"
        assert await balancer.metric(Metric.PICKS) == 0

        lies = {Header.CLIENT: "root"}
        answer = await http.post(url, json=BODY, headers=bearer("sk-bob-1") | lies)
        assert answer.status_code == 200
        assert one.seen[-1][Header.CLIENT] == "bob"
        assert "authorization" not in one.seen[-1], "a replica needs no key"

        assert await call(balancer) is grpc.StatusCode.UNAUTHENTICATED
        unknown = ("authorization", "Bearer sk-eve")
        assert await call(balancer, unknown) is grpc.StatusCode.UNAUTHENTICATED
        assert await call(balancer, ("authorization", "Bearer sk-alice-1")) is grpc.StatusCode.OK
        assert one.seen[-1][Header.CLIENT] == "alice"
        assert "authorization" not in one.seen[-1]

        assert (await http.get(f"{balancer.url}{BALANCER_HEALTH_PATH}")).status_code == 200
        metrics = await http.get(f"http://127.0.0.1:{balancer.http_port}/metrics")
        assert metrics.status_code == 200
        ready = await http.get(f"http://127.0.0.1:{balancer.http_port}/readyz")
        assert ready.status_code == 200


async def test_the_client_that_users_have(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    secret = MountedSecret(tmp_path / "secret", KEYS)
    async with serving(Replica("one")) as a, balance(a, **arguments(secret)) as balancer:
        base_url = f"{balancer.url}/v1"
        async with AsyncOpenAI(base_url=base_url, api_key="sk-alice-1", max_retries=0) as client:
            assert (await client.models.list()).data == []
        async with AsyncOpenAI(base_url=base_url, api_key="sk-eve", max_retries=0) as client:
            with pytest.raises(AuthenticationError) as refusal:
                await client.models.list()
        assert refusal.value.code == "invalid_api_key"


async def test_a_key_changes_without_a_restart_and_breaks_no_stream(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    secret = MountedSecret(tmp_path / "secret", KEYS)
    async with serving(Replica("one")) as a, balance(a, **arguments(secret)) as balancer:
        envoy, picker = balancer.envoy, balancer.picker
        body = {"prompt": "gap=0.1", "max_tokens": 40, "stream": True}

        async def stream() -> int:
            url = f"{balancer.url}/v1/completions"
            async with http.stream(
                "POST", url, json=body, headers=bearer("sk-alice-1"), timeout=30
            ) as answer:
                return len([line async for line in answer.aiter_lines() if line])

        running = asyncio.create_task(stream())
        await asyncio.sleep(0.5)
        secret.replace({"alice": "sk-alice-1\nsk-alice-2\n", "carol": "sk-carol"})

        async def is_in_force() -> bool:
            return await status(http, balancer, "sk-alice-2") == 200

        await balancer.eventually(is_in_force, seconds=10)
        assert await status(http, balancer, "sk-alice-1") == 200, "both count meanwhile"
        assert await status(http, balancer, "sk-bob-1") == 401, "a client that was taken out"
        assert await status(http, balancer, "sk-carol") == 200

        secret.replace({"alice": "sk-alice-2"})

        async def is_withdrawn() -> bool:
            return await status(http, balancer, "sk-alice-1") == 401

        await balancer.eventually(is_withdrawn, seconds=10)
        assert await status(http, balancer, "sk-alice-2") == 200
        assert await running == 41, "a stream that began with the old key ends as it should"

        secret.replace({})

        async def is_closed() -> bool:
            return await status(http, balancer, "sk-alice-2") == 401

        await balancer.eventually(is_closed, seconds=10)
        assert (envoy, picker) == (balancer.envoy, balancer.picker)
        assert envoy is not None
        assert picker is not None
        assert (envoy.returncode, picker.returncode) == (None, None)


async def test_keys_hold_without_the_picker_and_show_nowhere(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    bad = {"twin": "sk-alice-1", "spaced": "sk with spaces", "empty": "\n"}
    secret = MountedSecret(tmp_path / "secret", KEYS | bad)
    async with serving(Replica("one")) as a, balance(a, **arguments(secret)) as balancer:
        assert await status(http, balancer, "sk-alice-1") == 200
        assert await status(http, balancer, "sk-eve-unknown") == 401
        assert balancer.picker is not None
        balancer.picker.kill()
        await balancer.picker.wait()
        assert await status(http, balancer, "sk-eve-unknown") == 401
        assert await status(http, balancer, "sk-bob-1") == 200
        dump = (await http.get(f"http://127.0.0.1:{balancer.admin_port}/config_dump")).text
        stats = (await http.get(f"http://127.0.0.1:{balancer.admin_port}/stats")).text
        logs = "".join(path.read_text() for path in balancer.logs)
        configuration = (balancer.directory / "envoy.yaml").read_text()
        told = {"dump": dump, "stats": stats, "logs": logs, "configuration": configuration}
        for name, text in told.items():
            for key in ("sk-alice-1", "sk-bob-1", "sk-eve-unknown", "sk with spaces"):
                assert key not in text, (name, key)
        assert (balancer.directory / "api-keys.json").stat().st_mode & 0o777 == 0o600


async def test_without_a_file_of_keys_nobody_is_served(
    balance: Balance, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    secret = MountedSecret(tmp_path / "secret", KEYS)

    def lose_keys(balancer: Balancer) -> None:
        (balancer.directory / "api-keys.json").write_text(json.dumps({"resources": []}))

    given = ("--api-keys", str(secret.folder))
    async with (
        serving(Replica("one")) as a,
        balance(a, bootstrap_arguments=given, configure=lose_keys) as balancer,
    ):
        assert await status(http, balancer, "sk-alice-1") in (401, 500)
