"""What a deployment's pods are doing, in the words of whoever knows."""

from explained import NOW, UNREADY, container, event, facts, pod, resource, said, why

from fastgen_cli.explain import explain


def test_a_pod_is_told_with_the_scheduler_s_words() -> None:
    words = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    pending = pod(
        phase="Pending",
        conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                     "message": words}],
    )  # fmt: skip
    found = resource(
        conditions={"Ready": UNREADY, "CapacityBlocked": ("True", "Unschedulable", words)}
    )
    explanation = explain(facts(found, pods=(pending,)), NOW)
    (state,) = explanation.pods
    assert (state.state, state.age_seconds) == ("Unschedulable", 180)
    assert state.words.startswith(words)
    assert not explanation.ready
    assert words in explanation.summary
    assert explanation.advice[0].command == "kubectl -n models describe pod chat-replica-a"


def test_a_crashed_replica_is_told_in_its_own_words() -> None:
    end = {
        "exitCode": 1,
        "reason": "Error",
        "message": "OutOfMemory: 9 GiB are needed, 2 are there",
    }
    crashed = pod(
        phase="Running",
        containerStatuses=[
            container(restartCount=4, state={"waiting": {"reason": "CrashLoopBackOff"}},
                      lastState={"terminated": end}),
        ],
    )  # fmt: skip
    explanation = explain(facts(resource(conditions={"Ready": UNREADY}), pods=(crashed,)), NOW)
    (state,) = explanation.pods
    assert state.state == "OutOfMemory"
    assert "9 GiB are needed" in state.words
    assert state.restarts == 4
    assert "Raise spec.resources" in said(explanation)


def test_a_container_that_left_no_message_speaks_by_its_log() -> None:
    crashed = pod(
        phase="Running",
        containerStatuses=[
            container(state={"waiting": {"reason": "CrashLoopBackOff"}},
                      lastState={"terminated": {"exitCode": 139, "reason": "Error"}}),
        ],
    )  # fmt: skip
    lines = {"chat-replica-a": "Segmentation fault"}
    (state,) = explain(facts(pods=(crashed,), last_lines=lines), NOW).pods
    assert state.state == "CrashLoopBackOff"
    assert state.words.endswith("Segmentation fault")


def test_a_pod_that_starts_shows_its_log_or_the_kubelet_s_warning() -> None:
    starting = pod(
        phase="Running", containerStatuses=[container(started=False, state={"running": {}})]
    )
    lines = {"chat-replica-a": "loading tensors"}
    (state,) = explain(facts(pods=(starting,), last_lines=lines), NOW).pods
    assert (state.state, state.words) == ("Starting", "loading tensors")
    warning = event("Startup probe failed: 503", ("Pod", "chat-replica-a"), type="Warning")
    (state,) = explain(facts(pods=(starting,), events=(warning,)), NOW).pods
    assert state.words == "Startup probe failed: 503"


def test_pods_that_do_not_serve_come_first_and_balancers_last() -> None:
    pods = (
        pod("chat-balancer-x", "balancer"),
        pod("chat-replica-a"),
        pod("chat-replica-b", phase="Pending"),
        pod("chat-model-1", "download", phase="Succeeded"),
    )
    found = [each.name for each in explain(facts(pods=pods), NOW).pods]
    assert found == ["chat-model-1", "chat-replica-b", "chat-replica-a", "chat-balancer-x"]


def test_what_pods_say_alike_is_read_once_and_no_event_repeats_it() -> None:
    end = {"exitCode": 1, "reason": "Error", "message": "ModelInvalid: no tensors"}
    crashed = {"phase": "Running", "containerStatuses": [container(state={"terminated": end})]}
    pods = tuple(pod(f"chat-replica-{letter}", **crashed) for letter in "abc")
    failed = ("False", "ModelInvalid", "no tensors here")
    events = (
        event("no tensors here"),
        event("made the replicas"),
        event("Back-off restarting", ("Pod", "chat-replica-a"), type="Warning"),
    )
    found = resource(conditions={"Ready": UNREADY, "ModelReady": failed})
    explanation = explain(facts(found, pods=pods, events=events), NOW)
    assert said(explanation).count("“no tensors”") == 1
    assert [each.message for each in explanation.events] == ["made the replicas"]


def test_only_replicas_that_run_are_said_to_load_the_model() -> None:
    starting = pod(
        phase="Running", containerStatuses=[container(started=False, state={"running": {}})]
    )
    found = resource(conditions={"Ready": UNREADY}, model={"phase": "Loading"})
    assert "The model is being loaded by 1 replica." in why(found, pods=(starting,))
    assert "being loaded" not in why(found, pods=(pod(phase="Pending"),))


def test_a_model_s_server_that_is_away_is_told_with_the_way_out() -> None:
    words = "looking the model up: hub cannot be reached: again in 9 s"
    retrying = ("False", "DownloadRetrying", words)
    found = resource(
        conditions={"Ready": retrying, "ModelReady": retrying}, model={"phase": "Downloading"}
    )
    running = {"phase": "Running", "containerStatuses": [container(state={"running": {}})]}
    pods = (pod("chat-model-1", "download", **running),)
    explanation = explain(facts(found, pods=pods), NOW)
    assert explanation.summary == f"not ready: {words}"
    (advice,) = explanation.advice
    assert "hub.environment and hub.endpoint" in advice.text
    assert advice.command.startswith("kubectl -n models logs chat-model-1 ")
