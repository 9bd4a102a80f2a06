"""Sends one streamed request to a FastGenDeployment, as a client in the cluster would.

Reads DEPLOYMENT, DEPLOYMENT_NAMESPACE, BALANCER, SCHEME and TIMEOUT_SECONDS, and from
SECRET_DIRECTORY the files `apiKey` and `ca.crt` where there are any; exits with 1 and a sentence
when no complete answer comes.
"""

import json
import os
import ssl
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2


def base_url(environment: dict[str, str]) -> str:
    """The OpenAI API of the deployment, or of FASTGEN_TEST_URL outside a cluster."""
    if url := environment.get("FASTGEN_TEST_URL"):
        return url
    name, namespace = environment.get("DEPLOYMENT"), environment.get("DEPLOYMENT_NAMESPACE")
    if not name:
        sys.exit(
            "test.deployment is not set. Create a FastGenDeployment, wait until it is Ready, then: "
            "helm upgrade RELEASE CHART --reuse-values "
            "--set test.deployment=NAME,test.namespace=NAMESPACE"
        )
    host = environment.get("BALANCER") or name
    return f"{environment.get('SCHEME') or 'http'}://{host}.{namespace}.svc/v1"


def client_of(url: str, environment: dict[str, str]) -> httpx2.Client:
    """A client with the API key, and the trust, of the Secret."""
    folder = Path(environment.get("SECRET_DIRECTORY") or "/nonexistent")
    key, authority = folder / "apiKey", folder / "ca.crt"
    headers = {"authorization": f"Bearer {key.read_text().strip()}"} if key.exists() else {}
    if environment.get("BALANCER"):
        # Where several share it, the deployment is named, whatever model is asked for.
        headers["x-fastgen-model"] = environment["DEPLOYMENT"]
    trusted = ssl.create_default_context(cafile=str(authority) if authority.exists() else None)
    seconds = float(environment.get("TIMEOUT_SECONDS", "120"))
    return httpx2.Client(
        base_url=url, timeout=seconds, trust_env=False, headers=headers, verify=trusted
    )


def content_chunks(lines: Iterator[str]) -> Iterator[str]:
    """The text pieces of a server-sent event stream; raises ValueError when it ends early."""
    for line in lines:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:"):
            continue
        if data == "[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ValueError(f"the stream ended with an error: {chunk['error']}")
        for choice in chunk.get("choices", []):
            if text := choice.get("delta", {}).get("content"):
                yield text
    raise ValueError("the stream broke off before [DONE]")


def stream_once(client: httpx2.Client) -> str:
    """One answer, streamed; a sentence with its figures."""
    with client:
        models = client.get("/models")
        models.raise_for_status()
        model = models.json()["data"][0]["id"]
        request = {
            "model": model,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 16,
            "stream": True,
        }
        started = time.monotonic()
        first_seconds, pieces = 0.0, []
        with client.stream("POST", "/chat/completions", json=request) as response:
            if response.is_error:
                response.read()
            response.raise_for_status()
            for piece in content_chunks(response.iter_lines()):
                first_seconds = first_seconds or time.monotonic() - started
                pieces.append(piece)
        if not pieces:
            raise ValueError("the stream ended without a token")
        total_seconds = time.monotonic() - started
    return (
        f"{model} answered {''.join(pieces)!r}: first token after {first_seconds * 1000:.0f} ms, "
        f"{len(pieces)} pieces in {total_seconds:.2f} s"
    )


def main() -> None:
    """Prints the figures, or exits with what went wrong and where to look."""
    url = base_url(dict(os.environ))
    try:
        print(stream_once(client_of(url, dict(os.environ))))
    except httpx2.ConnectError as error:
        sys.exit(
            f"{url} cannot be reached ({error}). Does the deployment exist, and is it Ready? "
            "kubectl get fastgendeployments --all-namespaces"
        )
    except httpx2.HTTPStatusError as error:
        sys.exit(f"{url} answered {error.response.status_code}: {error.response.text[:500]}")
    except (httpx2.HTTPError, ValueError, LookupError) as error:
        sys.exit(f"{url} gave no complete answer: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
