"""The port that serves metrics and nothing else, and the warning about GPUs without a driver."""

from pathlib import Path

import httpx2
import pytest
from replica_process import running_replica
from tiny_model import write_tiny_model

from fastgen_runtime.allotment import has_gpus


def test_the_metrics_port_serves_metrics_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "GPU-1234")
    model = write_tiny_model(tmp_path / "model")
    flags = ("--metrics-port=0", "--metric-aliases=vllm", "--cpu-step=Off")
    with running_replica(model, tmp_path, *flags) as replica:
        (listening,) = [each for each in replica.events() if each["message"] == "listening"]
        url = f"http://{listening['metrics']}"
        assert "fastgen_running_requests" in httpx2.get(f"{url}/metrics").text
        assert "fastgen_running_requests" in httpx2.get(f"{replica.url}/metrics").text
        assert "vllm:num_requests_waiting{" in httpx2.get(f"{url}/metrics").text
        for path in ("/v1/models", "/health", "/metrics/", "//metrics"):
            assert httpx2.get(f"{url}{path}").status_code == 404, path
        answer = httpx2.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": 1})
        assert answer.status_code == 404
        assert answer.json()["error"]["message"] == "this port serves /metrics alone"
        warnings = [each["message"] for each in replica.events() if each["level"] == "warning"]
        assert warnings == [
            "GPUs were allotted to this replica, but it sees no NVIDIA driver: it computes on CPUs"
        ]


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, None, False),
        ("", None, False),
        ("void", None, False),
        ("all", None, False),
        ("GPU-8f1c", None, True),
        ("0,1", None, True),
        ("all", "nvidia0", True),
        (None, "nvidia7", True),
        (None, "nvidiactl", False),
    ],
)
def test_gpus_are_seen_by_name_or_by_device_file(
    tmp_path: Path, visible: str | None, device: str | None, expected: bool
) -> None:
    if device:
        (tmp_path / device).touch()
    environment = {} if visible is None else {"NVIDIA_VISIBLE_DEVICES": visible}
    assert has_gpus(environment, tmp_path) is expected
