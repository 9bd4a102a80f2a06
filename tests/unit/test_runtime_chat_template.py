"""Chat templates run in a sandbox; what goes wrong in them is the request's error."""

from datetime import datetime

import pytest

from fastgen_runtime.startup_error import ModelError
from fastgen_runtime.text.chat_template import ChatTemplate, ChatTemplateError

MESSAGES = [{"role": "user", "content": "<b>&"}]


def render(text: str, **variables: object) -> str:
    template = ChatTemplate(text, {"bos_token": "<s>"})
    return template.render(MESSAGES, variables, now=lambda: datetime(2024, 7, 26))


def test_variables() -> None:
    text = "{{ bos_token }}{{ messages[0].content }}{{ add_generation_prompt }}{{ tools }}"
    assert render(text, tools=[1]) == "<s><b>&True[1]"


def test_names_of_the_templates_own_are_told() -> None:
    own = ChatTemplate("", {"bos_token": "<s>"}).own_names
    assert {"self", "bos_token", "strftime_now", "raise_exception", "range"} <= own
    assert not {"tools", "messages", "add_generation_prompt", "enable_thinking"} & own


def test_blocks_leave_no_blank_lines() -> None:
    assert (
        render("  {% for m in messages %}\n{{ m.role }}\n  {% break %}\n{% endfor %}") == "user\n"
    )


def test_json_is_not_escaped_for_html() -> None:
    assert render("{{ messages | tojson }}") == '[{"role": "user", "content": "<b>&"}]'


def test_strftime_now() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2024"


def test_training_markers_show_nothing() -> None:
    assert render("a{% generation %}{{ messages[0].role }}{% endgeneration %}b") == "auserb"


def test_a_refusal_in_the_templates_own_words() -> None:
    with pytest.raises(ChatTemplateError, match="no system role"):
        render("{{ raise_exception('no system role') }}")


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[5].content.x }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ range(10000000) | list }}",
        "{% for a in missing.values() %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_failures_are_the_requests(text: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"^messages: "):
        render(text)


def test_a_broken_template_is_the_models() -> None:
    with pytest.raises(ModelError, match="chat template"):
        ChatTemplate("{% for %}", {})
