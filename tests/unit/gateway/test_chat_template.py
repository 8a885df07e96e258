"""Chat templates as transformers renders them."""

import pytest

from draftwood_gateway.chat_template import ChatTemplate, special_tokens
from draftwood_wire.errors import InvalidRequest

USER = [{"role": "user", "content": "<hi> & bye"}]


def test_blocks_are_trimmed_and_tokens_known() -> None:
    loop = "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m | tojson }}\n  {% endif %}\n{% endfor %}"
    source = "{{ bos_token }}\n" + loop
    rendered = ChatTemplate(source, {"bos_token": "<s>"}).render(USER, {})
    assert rendered == '<s>\n{"role": "user", "content": "<hi> & bye"}\n'


def test_options_and_generation_prompt_reach_the_template() -> None:
    template = ChatTemplate("{{ add_generation_prompt }} {{ thinking }}{{ strftime_now('') }}", {})
    assert template.render(USER, {"thinking": 1}) == "True 1"


@pytest.mark.parametrize("source", ["{{ raise_exception('roles must alternate') }}", "{{ messages.append(1) }}"])
def test_refusals_name_the_field(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^messages: "):
        ChatTemplate(source, {}).render(USER, {})


def test_broken_template_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match="chat template"):
        ChatTemplate("{% if %}", {})


def test_special_tokens_are_strings_or_objects() -> None:
    config = {"eos_token": {"content": "<e>"}, "bos_token": "<b>", "pad_token": None, "add_bos_token": True}
    assert special_tokens(config) == {"eos_token": "<e>", "bos_token": "<b>"}
