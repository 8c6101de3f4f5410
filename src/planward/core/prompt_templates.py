"""Chat prompts from Jinja templates, so that every word of them is the experimenter's.

A template has blocks named after the turns of a chat: `user` for the problem, before it `system`, and `assistant` with
the completion of a worked example, each of which then becomes a `user` and an `assistant` turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, UndefinedError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from planward.core.tasks import Messages
from planward.params import ParamsError, PromptConfig

TURNS = ("system", "user", "assistant")
OTHER_FILES = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)


class PromptTemplateError(ParamsError):
    """A prompt template is missing or faulty; the message names the file and the line."""


class PromptTemplate:
    """A template file; its variables are the public properties of the objects that it renders.

    A property is computed only for a block that uses its name. Whitespace around a turn is stripped, and a system turn
    without text is left out. Without a block `assistant`, the template itself shows the worked examples, by its
    variable `examples`.

    Raises:
        PromptTemplateError: the file is missing, or is no such template.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        del environment.filters["random"], environment.globals["lipsum"]  # equal problems have equal prompts
        source = read_template(path)
        try:
            tree = environment.parse(source)
            code = environment.compile(source, filename=str(path))
        except TemplateSyntaxError as error:
            raise PromptTemplateError(f"{path}:{error.lineno}: {error.message}") from None
        self._check_blocks(tree)
        self._template = Template.from_code(environment, code, environment.make_globals(None))
        self._names = {
            block.name: find_undeclared_variables(nodes.Template(block.body, lineno=1, environment=environment))
            for block in tree.find_all(nodes.Block)
        }

    def render(self, problem: object, examples: Sequence[object] = (), *, system_turn: bool = True) -> Messages:
        """Render a problem after its worked examples as chat messages.

        Args:
            problem: its properties are the variables of `system` and of the last `user` turn.
            examples: the same for their turns; each has its completion as a further property.
            system_turn: false: the system text opens the first user turn, for models that refuse a system role.

        Raises:
            PromptTemplateError: the template uses a variable that there is not, or fails otherwise.
        """
        turns = []
        if "assistant" in self._template.blocks:
            for example in examples:
                turns += [self._render_turn("user", example, ()), self._render_turn("assistant", example, ())]
        elif examples and not any("examples" in names for names in self._names.values()):
            raise PromptTemplateError(
                f"{self.path}: has no place for worked examples; fix: add a block `assistant` with an example's "
                "completion, or a loop over `examples` to the block `user`"
            )
        turns.append(self._render_turn("user", problem, examples))
        if "system" in self._template.blocks:
            system = self._render_turn("system", problem, examples)
            if system["content"] and system_turn:
                turns.insert(0, system)
            elif system["content"]:
                turns[0]["content"] = f"{system['content']}\n\n{turns[0]['content']}"
        return turns

    def _render_turn(self, role: str, source: object, examples: Sequence[object]) -> dict[str, str]:
        names = list_variables(source)
        values: dict[str, Any] = {name: getattr(source, name) for name in names if name in self._names[role]}
        context = self._template.new_context({**values, "examples": examples})
        try:
            text = "".join(self._template.blocks[role](context))
        except Exception as error:  # whatever an expression of the template may raise
            fix = f"; fix: use one of {', '.join([*names, 'examples'])}" if isinstance(error, UndefinedError) else ""
            raise PromptTemplateError(f"{self.path}:{self._find_line(error)}: {error}{fix}") from error
        return {"role": role, "content": text.strip()}

    def _find_line(self, error: Exception) -> int:
        """Return the template's line at which an error was raised."""
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == str(self.path):
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line

    def _check_blocks(self, tree: nodes.Template) -> None:
        """Raise PromptTemplateError for text in no turn, an unknown block, a second file, or a missing `user`."""
        for statement in tree.find_all(OTHER_FILES):
            raise PromptTemplateError(
                f"{self.path}:{statement.lineno}: a template is one file; fix: copy the other one into it"
            )
        for node in tree.body:
            if isinstance(node, nodes.Block):
                if node.name not in TURNS:
                    turns = ", ".join(TURNS)
                    raise PromptTemplateError(f"{self.path}:{node.lineno}: no turn is called {node.name}; fix: {turns}")
            elif (line := _find_text_line(node)) is not None:
                raise PromptTemplateError(
                    f"{self.path}:{line}: outside of the blocks; fix: move it into {', '.join(TURNS)}"
                )
        if not any(isinstance(node, nodes.Block) and node.name == "user" for node in tree.body):
            raise PromptTemplateError(
                f"{self.path}: has no block `user`, the turn of a problem; "
                "fix: {% block user %}{{ problem }}{% endblock %}"
            )


def read_template(path: Path) -> str:
    """Return a template's text; raises PromptTemplateError where it is missing or not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise PromptTemplateError(f"prompt.template: {path}: {reason}; fix: name a Jinja template file") from None


def list_variables(source: object) -> list[str]:
    """List the public properties of an object's class."""
    return [name for name in dir(type(source)) if not name.startswith("_")]


def identify_prompts(config: PromptConfig) -> dict[str, Any]:
    """Return all that decides how problems become prompts: the section `prompt`, and the text of its template."""
    template = config.template if config.style == "full" else None
    text = sha256(read_template(template).encode()).hexdigest() if template else None
    return config.model_dump(mode="json") | {"template_sha256": text}


def _find_text_line(node: nodes.Node) -> int | None:
    """Return the line of the first text or expression of a node; None where there is only space."""
    parts: Sequence[nodes.Node] = node.nodes if isinstance(node, nodes.Output) else [node]
    for part in parts:
        if not isinstance(part, nodes.TemplateData):
            return part.lineno
        if text := part.data.strip():
            return part.lineno + part.data[: part.data.index(text)].count("\n")
    return None
