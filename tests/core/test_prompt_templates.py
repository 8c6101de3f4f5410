"""Prompt templates: turns of a chat in the words of a file, and errors that say where the file is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from planward.core.prompt_templates import PromptTemplate, PromptTemplateError, identify_prompts
from planward.params import PromptConfig

CHAT = """\
{# a comment #}
{% block system %}
Plan well.
{% endblock %}
{% block user %}
{{ problem }}?
{% endblock %}
{% block assistant %}
{{ plan }}
{% endblock %}
"""


class Puzzle:
    def __init__(self, problem: str) -> None:
        self._problem = problem

    @property
    def problem(self) -> str:
        return self._problem

    @property
    def unreadable(self) -> str:
        raise AssertionError("computed, though no template uses it")


class SolvedPuzzle(Puzzle):
    @property
    def plan(self) -> str:
        return self._problem.upper()


def write_template(folder: Path, text: str) -> PromptTemplate:
    file = folder / "own.jinja"
    file.write_text(text, encoding="utf-8")
    return PromptTemplate(file)


def test_each_block_is_a_turn(tmp_path: Path) -> None:
    assert write_template(tmp_path, CHAT).render(Puzzle("b"), [SolvedPuzzle("a")]) == [
        {"role": "system", "content": "Plan well."},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "b?"},
    ]


def test_the_system_text_can_open_the_first_user_turn(tmp_path: Path) -> None:
    turns = write_template(tmp_path, CHAT).render(Puzzle("b"), [SolvedPuzzle("a")], system_turn=False)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [turn["content"] for turn in turns] == ["Plan well.\n\na?", "A", "b?"]


@pytest.mark.parametrize("system", ["", "{% block system %}{% endblock %}"])
def test_without_a_system_text_there_is_no_system_turn(tmp_path: Path, system: str) -> None:
    template = write_template(tmp_path, system + "{% block user %}{{ problem }}{% endblock %}")
    assert template.render(Puzzle("b")) == [{"role": "user", "content": "b"}]


def test_a_template_can_show_the_examples_in_one_turn(tmp_path: Path) -> None:
    loop = "{% for example in examples %}{{ example.problem }}: {{ example.plan }}\n{% endfor %}"
    template = write_template(tmp_path, "{% block user %}" + loop + "{{ problem }}:{% endblock %}")
    examples = [SolvedPuzzle("a"), SolvedPuzzle("b")]
    assert template.render(Puzzle("c"), examples) == [{"role": "user", "content": "a: A\nb: B\nc:"}]


def test_examples_are_never_left_out_silently(tmp_path: Path) -> None:
    template = write_template(tmp_path, "{% block user %}{{ problem }}{% endblock %}")
    with pytest.raises(PromptTemplateError, match=r"own\.jinja: has no place for worked examples; fix: .*`assistant`"):
        template.render(Puzzle("b"), [SolvedPuzzle("a")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{% block user %}\n{{ problem }}\n{{ probelm }}\n{% endblock %}",
            r":3: 'probelm' is undefined; fix: .*problem",
        ),
        ("{% block user %}\n{{ plan }}\n{% endblock %}", r":2: 'plan' is undefined"),  # that would be the solution
        ("{% block user %}\n\n{{ problem.size }}\n{% endblock %}", r":3: .* has no attribute 'size'"),
        ("{% block user %}\n{{ problem.__class__ }}\n{% endblock %}", r":2: access to attribute '__class__'"),
        ("{% block user %}\n{{ 1 / 0 }}\n{% endblock %}", r":2: division by zero"),
    ],
)
def test_an_error_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    template = write_template(tmp_path, text)
    with pytest.raises(PromptTemplateError, match=rf"own\.jinja{message}"):
        template.render(Puzzle("b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% block user %}\n{{ problem }\n{% endblock %}", ":2: "),
        ("{# first #}\n{% block user %}\n{% endblock %}\n\nPlan:\n", ":5: outside of the blocks; fix: move it into"),
        ("{% block user %}\n{% endblock %}\n{{ problem }}", ":3: outside of the blocks"),
        ("{% block user %}{% endblock %}\n{% block final %}{% endblock %}", ":2: no turn is called final; fix: system"),
        ("{% block user %}\n{% include 'other.jinja' %}{% endblock %}", ":2: a template is one file"),
        ("{% block user %}{{ ['a', 'b'] | random }}{% endblock %}", ":1: No filter named 'random'"),
        ("{% block system %}{% endblock %}", ": has no block `user`"),
    ],
)
def test_a_faulty_template_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PromptTemplateError, match=rf"own\.jinja{message}"):
        write_template(tmp_path, text)


def test_a_missing_template_names_the_parameter(tmp_path: Path) -> None:
    with pytest.raises(PromptTemplateError, match=r"prompt\.template: .*none\.jinja: No such file"):
        PromptTemplate(tmp_path / "none.jinja")


def test_prompts_differ_where_the_text_of_the_template_does(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    config = PromptConfig(style="full", template=file, max_tokens=9, max_completion_tokens=9)
    file.write_text(CHAT)
    before = identify_prompts(config)
    assert identify_prompts(config) == before
    file.write_text(CHAT + "{# changed #}")
    assert identify_prompts(config) != before
    file.unlink()
    assert identify_prompts(config.model_copy(update={"style": "compact"}))  # which has no template
