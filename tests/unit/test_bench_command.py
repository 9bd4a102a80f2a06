"""`fastgen bench` against an endpoint without a model: what it shows, writes and says."""

import os
import signal
import threading
from pathlib import Path

import msgspec
import pytest
from fake_openai import MODEL, TEMPLATE_TOKENS, fake_openai
from typer.testing import CliRunner, Result

from fastgen_cli.bench.report import SCHEMA, Report
from fastgen_cli.main import app
from fastgen_cli.plan import free_ports

runner = CliRunner()
SMALL = ["--prompt-tokens", "uniform:30-60", "--output-tokens", "uniform:2-9"]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def bench(url: str, *more: str) -> Result:
    return runner.invoke(app, ["bench", url, *more])


def read(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def test_a_closed_loop_is_measured_and_written(tmp_path: Path) -> None:
    output, plot, page = (tmp_path / name for name in ("out.json", "out.svg", "out.html"))
    with fake_openai() as fake:
        result = bench(
            fake.url, *SMALL, "--clients", "1,3", "--requests", "7",
            "--slo", "ttft=60s,tpot=60s,gap=60s", "--temperature", "0",
            "--output", str(output), "--plot", str(plot), "--html", str(page),
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    for words in ("3 clients", "TTFT P90", "TPOT P99", "goodput", "effective throughput at 4"):
        assert words in result.output
    report = read(output)
    assert (report.schema, report.model, report.is_complete) == (SCHEMA, MODEL, True)
    assert [point.name for point in report.points] == ["1 client", "3 clients"]
    for point in report.points:
        assert (point.requests, point.succeeded, point.failures) == (7, 7, {})
        assert point.good_percent == 100.0
        assert point.prompt_tokens.exact_percent == 100.0
        assert point.output_tokens.exact_percent == 100.0
    assert "<svg" in plot.read_text()
    assert page.read_text().count("<svg") == 1
    assert "src=" not in page.read_text(), "the page must need nothing else"


def test_what_is_sent_is_what_was_asked(tmp_path: Path) -> None:
    with fake_openai() as fake:
        bench(fake.url, "--prompt-tokens", "50", "--output-tokens", "3", "--clients", "2",
              "--requests", "5", "--seed", "4")  # fmt: skip
    *probes, warm_up = fake.bodies[:3]
    assert [body["max_tokens"] for body in probes] == [1, 1]
    measured = fake.bodies[3:]
    assert len(measured) == 5
    for body in [warm_up, *measured]:
        assert fake.prompt_tokens(body) == 50
        assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (3, True, True)
        assert body["stream_options"] == {"include_usage": True}
        assert "temperature" not in body
    texts = {body["messages"][0]["content"][:60] for body in [warm_up, *measured]}
    assert len(texts) == 6, "prompts that begin alike would be found in a prefix cache"
    with fake_openai() as again:
        bench(again.url, "--prompt-tokens", "50", "--output-tokens", "3", "--clients", "1",
              "--requests", "5", "--seed", "4")  # fmt: skip
    key = lambda body: body["messages"][0]["content"]  # noqa: E731
    assert sorted(again.bodies[3:], key=key) == sorted(measured, key=key)


def test_words_that_are_two_tokens_are_found_out(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    with fake_openai(long_words=frozenset({"river", "stone"})) as fake:
        result = bench(
            fake.url, *SMALL, "--clients", "1", "--requests", "5", "--output", str(output)
        )
    assert result.exit_code == 0, result.output
    assert read(output).load.is_exact
    assert read(output).points[0].prompt_tokens.exact_percent == 100.0


def test_completions_take_token_ids_without_a_probe(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    with fake_openai() as fake:
        result = bench(fake.url, *SMALL, "--api", "completions", "--token-ids", "5-9",
                       "--clients", "2", "--requests", "6", "--no-ignore-eos",
                       "--output", str(output))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(fake.bodies) == 7
    assert all(set(body["prompt"]) <= set(range(5, 10)) for body in fake.bodies)
    assert not any("ignore_eos" in body for body in fake.bodies)
    assert read(output).points[0].prompt_tokens.exact_percent == 100.0


def test_an_open_loop_sends_a_trace_in_its_times_and_lengths(tmp_path: Path) -> None:
    trace, output = tmp_path / "trace.csv", tmp_path / "out.json"
    trace.write_text("timestamp,prompt_tokens,output_tokens\n0,40,3\n50,60,2\n100,9000,9\n")
    with fake_openai() as fake:
        result = bench(fake.url, "--trace", str(trace), "--speed", "1000", "--max-length", "200",
                       "--output", str(output))  # fmt: skip
    assert result.exit_code == 0, result.output
    (point,) = read(output).points
    assert (point.name, point.requests, point.succeeded) == ("trace × 1000", 3, 3)
    assert point.seconds >= 0.1 - 0.001
    lengths = [(fake.prompt_tokens(body), body["max_tokens"]) for body in fake.bodies[3:]]
    assert sorted(lengths) == [(40, 3), (60, 2), (199, 1)]


def test_an_open_loop_does_not_send_beyond_its_cap(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    # The first answer never ends: it is in flight when the others are due, and times out.
    with fake_openai(hold=threading.Event()) as fake:
        result = bench(fake.url, "--prompt-tokens", "30", "--output-tokens", "2", "--rate", "200",
                       "--requests", "6", "--max-in-flight", "1", "--warm-up", "0",
                       "--timeout", "2", "--output", str(output))  # fmt: skip
    assert result.exit_code == 0, result.output
    (point,) = read(output).points
    assert (point.requests, point.succeeded) == (6, 0)
    kinds = {kind: failures.count for kind, failures in point.failures.items()}
    assert kinds["not sent: too many in flight"] + kinds["timed out"] == 6
    assert kinds["not sent: too many in flight"] > 0
    assert "not sent" in result.output


@pytest.mark.parametrize(
    ("faults", "more", "words"),
    [
        ({"api_key": "sk-right"}, [], "wants an API key"),
        ({}, ["--model", "gpt"], f"does not serve 'gpt'; it serves {MODEL}"),
        ({"has_usage": False}, [], "does not count tokens"),
        ({"refuse": (400, "no field ignore_eos")}, [], "ignore_eos. An endpoint that knows"),
        ({"refuse": (429, "full")}, [], "takes no requests now (HTTP 429: full)"),
        ({"breaks_off": True}, [], "the answer broke off"),
    ],
)  # fmt: skip
def test_what_would_fail_every_request_is_said_at_once(
    faults: dict[str, object], more: list[str], words: str
) -> None:
    with fake_openai(**faults) as fake:
        result = bench(fake.url, *SMALL, "--requests", "3", *more)
    assert result.exit_code == 1
    assert words in said(result)
    assert len(fake.bodies) <= 1


def test_an_endpoint_that_is_down_is_named() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    result = bench(url)
    assert result.exit_code == 1
    assert f"Nothing answers at {url}/v1" in said(result)
    result = runner.invoke(app, ["bench", "--grpc", url.removeprefix("http://")])
    assert result.exit_code == 1
    assert "Nothing answers at 127.0.0.1" in said(result)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--plot", "out.docx"], ".png"),
        (["--plot", "/none/out.png"], "--plot /none/out.png: No such file"),
        (["--html", "/none/out.html"], "--html /none/out.html: No such file"),
        (["--output", "/none/out.json"], "--output /none/out.json: No such file"),
        (["--token-ids", "5-9"], "--api completions"),
        (["--slo", "ttft=soon"], "soon"),
        (["--prompt-tokens", "long"], "--prompt-tokens"),
        (["--clients", "1", "--rate", "2"], "--rate"),
        (["--api-key-file", "/none"], "--api-key-file"),
        (["--tokenizer", "/"], "--tokenizer"),
        (["--tls"], "--grpc"),
        (["--clients", "1", "--speed", "2"], "--trace"),
        (["--ca-file", __file__], "--ca-file"),
    ],
)
def test_flags_that_cannot_be_are_refused_before_anything_is_sent(
    more: list[str], words: str
) -> None:
    with fake_openai() as fake:
        result = bench(fake.url, *more)
    assert result.exit_code == 1
    assert words in said(result)
    assert not fake.keys


def test_keys_are_sent_in_turn_and_shown_nowhere(tmp_path: Path) -> None:
    keys, output = tmp_path / "keys", tmp_path / "out.json"
    keys.write_text("sk-right\nsk-wrong\n")
    with fake_openai(api_key="sk-right") as fake:
        result = bench(fake.url, *SMALL, "--clients", "1", "--requests", "4",
                       "--api-key-file", str(keys), "--output", str(output))  # fmt: skip
    assert result.exit_code == 0, result.output
    (point,) = read(output).points
    assert (point.succeeded, point.failures["HTTP 401"].count) == (2, 2)
    assert "wrong key [API key]" in point.failures["HTTP 401"].example
    assert set(fake.keys) == {"sk-right", "sk-wrong"}
    assert "sk-" not in result.output + output.read_text()


def test_a_refused_key_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    with fake_openai(api_key="sk-right") as fake:
        result = bench(fake.url)
    assert result.exit_code == 1
    assert "wrong key [API key]" in said(result)
    assert "sk-mine" not in result.output


def test_ctrl_c_shows_what_was_measured_so_far(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    hold = threading.Event()
    with fake_openai(hold=hold) as fake:

        def interrupt() -> None:
            assert fake.first_token.wait(60)
            os.kill(os.getpid(), signal.SIGINT)

        # The first answer has one token, which nothing holds; the second has two.
        trace = tmp_path / "trace.csv"
        trace.write_text("timestamp,prompt_tokens,output_tokens\n0,40,1\n1,40,2\n")
        thread = threading.Thread(target=interrupt)
        thread.start()
        result = bench(fake.url, "--trace", str(trace), "--clients", "1", "--warm-up", "0",
                       "--output", str(output))  # fmt: skip
        thread.join()
    assert result.exit_code == 130, result.output
    assert "stopped" in result.output
    report = read(output)
    assert not report.is_complete
    assert (report.points[0].requests, report.points[0].succeeded) == (1, 1)


def test_a_tokenizer_counts_for_an_endpoint_that_does_not(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    output = tmp_path / "out.json"
    with fake_openai(has_usage=False) as fake:
        result = bench(fake.url, *SMALL, "--clients", "1", "--requests", "4",
                       "--tokenizer", str(tmp_path), "--output", str(output))  # fmt: skip
    assert result.exit_code == 0, result.output
    (point,) = read(output).points
    assert point.output_tokens.exact_percent == 100.0
    assert fake.prompt_tokens(fake.bodies[-1]) == TEMPLATE_TOKENS + len(
        fake.bodies[-1]["messages"][0]["content"].split()
    )
