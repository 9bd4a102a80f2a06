"""`fastgen-download` against a real server in all its moods: what comes, and what is told."""

import os
from pathlib import Path

import pytest
from download_process import Downloads, Ended
from hub_server import (
    BROKEN,
    COMMIT,
    DAMAGED,
    SIGNATURE,
    TOKEN,
    HubServer,
    head_of,
    serving_hub,
    throttled,
)
from served_models import GGUF, HUB, SHARD, https, is_same, kill_at_half

SNAPSHOT = f"huggingface/hub/models--test--tiny/snapshots/{COMMIT}"


# Lies, locks and addresses.


def checked(hub: HubServer, sha256: str) -> str:
    return f"{https(hub)}#sha256={sha256}"


def test_a_checksum_of_the_source_is_checked(hub: HubServer, downloads: Downloads) -> None:
    source = checked(hub, "0" * 64)
    ended = downloads.run(source)
    assert ended.code == 1
    assert ended.last_words.startswith(f"ChecksumMismatch: {GGUF} came twice")
    assert hub.downloaded == [GGUF, GGUF]
    assert list(downloads.cache.rglob("*.gguf*")) == []
    actual = ended.last_words.partition("announced: ")[2].partition(",")[0]
    assert downloads.run(checked(hub, actual)).code == 0
    assert is_same(hub, downloads, GGUF)


@pytest.mark.parametrize("name", [SHARD, "config.json"], ids=["SHA-256", "Git hash"])
def test_a_wrong_file_is_fetched_once_more_and_then_refused(
    hub: HubServer, downloads: Downloads, name: str
) -> None:
    hub.faults[name].append(DAMAGED)
    assert downloads.run(HUB).code == 0
    assert hub.downloaded.count(name) == 2
    assert is_same(hub, downloads, name)
    hub.always[name] = DAMAGED
    other = Downloads(downloads.folder / "other", downloads.environment)
    ended = other.run(HUB)
    assert ended.code == 1
    assert ended.last_words.startswith(f"ChecksumMismatch: {name} came twice")
    assert not any(path.is_file() for path in other.cache.rglob(name))


def test_a_kill_does_not_hide_a_lie(hub: HubServer, downloads: Downloads) -> None:
    """The half that came before it was right, and the rest is not."""
    kill_at_half(hub, downloads, f"{HUB}/{GGUF}", GGUF)
    hub.faults[GGUF].append(DAMAGED)
    assert downloads.run(f"{HUB}/{GGUF}").code == 0
    assert is_same(hub, downloads, GGUF)


def is_denied(ended: Ended) -> bool:
    return (
        ended.code == 1
        and ended.last_words.startswith("AccessDenied: ")
        and "spec.model.tokenSecretRef" in ended.last_words
    )


def test_access_is_denied_in_plain_words(hub: HubServer, downloads: Downloads) -> None:
    hub.is_private = True
    for source in (HUB, https(hub)):
        assert is_denied(downloads.run(source))
        wrong = downloads.run(source, HF_TOKEN="hf_another")
        assert is_denied(wrong)
        assert "hf_another" not in wrong.text + wrong.last_words
        assert downloads.run(source, HF_TOKEN=f"{TOKEN}\n").code == 0


def test_a_gated_model_names_its_page(hub: HubServer, downloads: Downloads) -> None:
    hub.is_gated = True
    ended = downloads.run(HUB)
    assert is_denied(ended)
    assert f"accept its terms at {hub.url}/test/tiny" in ended.last_words


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (f"{HUB}@v9", "ModelNotFound: hf://test/tiny@v9 names a revision"),
        (f"{HUB}/none.gguf", "ModelNotFound: hf://test/tiny has no file none.gguf"),
        ("https://{host}/files/none.gguf", "ModelNotFound: https://{host}/files/none.gguf"),
        ("https://{host}/files/mamba.gguf", "ModelUnsupported: the GGUF architecture mamba"),
        ("https://{host}/files/page.gguf", "ModelInvalid: page.gguf is no GGUF file"),
        ("https://{host}/files/model.bin", "ModelUnsupported: https://{host}/files/model.bin"),
        ("https://me:word@{host}/m.gguf", "ConfigInvalid: https://{host}/m.gguf holds a user"),
        ("https://{host}/m.gguf#sha1=0", "ConfigInvalid: https://{host}/m.gguf: what follows #"),
        ("pvc://claim/path", "ModelUnsupported: pvc://claim/path cannot be downloaded"),
    ],
)
def test_what_no_retry_mends_is_told_at_once(
    hub: HubServer, downloads: Downloads, source: str, words: str
) -> None:
    host = hub.url.partition("://")[2]
    ended = downloads.run(source.format(host=host))
    assert ended.code == 1
    assert ended.last_words.startswith(words.format(host=host)), ended.last_words
    assert hub.downloaded == []


def test_an_authority_that_is_not_trusted(hub: HubServer, downloads: Downloads) -> None:
    trusted = "/etc/ssl/certs/ca-certificates.crt"
    ended = downloads.run(https(hub), SSL_CERT_FILE=trusted)
    assert ended.code == 1
    assert ended.last_words.startswith("ConfigInvalid: the certificate of 127.0.0.1")
    assert "SSL_CERT_FILE" in ended.last_words


# Secrets.


def test_no_secret_is_told_or_kept_or_sent_elsewhere(hub: HubServer, downloads: Downloads) -> None:
    hub.is_private = True
    hub.always[SHARD] = throttled(None)
    hub.always[head_of("mamba.gguf")] = BROKEN
    query = "?password=hush"
    told = ""
    for source in (
        HUB,
        https(hub) + query,
        https(hub, "mamba.gguf", "moved") + query,
        https(hub, "none.gguf") + query,
        "https://localhost:9/m.gguf" + query,
    ):
        ended = downloads.run(source, HF_TOKEN=TOKEN, FASTGEN_DOWNLOAD_PATIENCE_SECONDS="2")
        told += ended.text + ended.last_words
    assert "throttled by localhost" in told
    assert "the connection to localhost" in told
    kept = b"".join(path.read_bytes() for path in downloads.cache.rglob("*") if path.is_file())
    for secret in (TOKEN, SIGNATURE, "hush"):
        assert secret not in told
        assert secret.encode() not in kept
    assert hub.tokens_on_content_network == []
    assert any(line.startswith("GET /content/") for line in hub.requests)


def test_a_redirect_away_from_tls_is_not_followed(
    hub: HubServer, downloads: Downloads, tmp_path: Path
) -> None:
    before = hub.content_url
    with serving_hub(hub.folder) as plain:
        hub.content_url = plain.url
        try:
            ended = downloads.run(https(hub, folder="moved"), HF_TOKEN=TOKEN)
        finally:
            hub.content_url = before
        assert plain.requests == []
    assert ended.code == 1
    assert ended.last_words.startswith("ModelNotFound: 127.0.0.1 redirects to 127.0.0.1")
    assert "without TLS" in ended.last_words


# What is told of it.


def test_resolving_fetches_no_weights(hub: HubServer, downloads: Downloads) -> None:
    ended = downloads.run(HUB, "--revision=v1", "--resolve-only")
    assert ended.code == 0, ended.text
    (line,) = ended.lines("resolved")
    whole = sum(path.stat().st_size for path in hub.folder.iterdir() if path.suffix != ".gguf")
    assert (line["revision"], line["bytes"]) == (COMMIT, whole)
    assert line["path"] == str(downloads.cache / SNAPSHOT)
    assert set(hub.downloaded) == {"config.json", "model.safetensors.index.json"}
    hub.reset()
    ended = downloads.run(https(hub), "--resolve-only")
    (line,) = ended.lines("resolved")
    assert line["bytes"] == (hub.folder / GGUF).stat().st_size
    assert hub.downloaded == []
    assert downloads.run(https(hub)).lines("delivered")[0]["path"] == line["path"]


def test_a_cache_without_room_is_told_before_anything_comes(
    hub: HubServer, downloads: Downloads
) -> None:
    hub.listed_bytes[SHARD] = 10**15
    ended = downloads.run(HUB)
    assert ended.code == os.EX_TEMPFAIL
    assert ended.last_words.startswith("CacheFull: the download needs 1000000.0")
    assert "GB left" in ended.last_words
    assert SHARD not in hub.downloaded
