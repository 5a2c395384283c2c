"""Questions that only a person can answer: a new host key, a password, a passphrase; and a node's address."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input

from fleet.model import Question, QuestionKind
from widgets.entries import Entry, Fact, Heading, Paragraph
from widgets.entry_view import EntryView
from widgets.spans import Span, Tone, line

TITLES = {
    QuestionKind.HOST_KEY: "Is this the machine you mean?",
    QuestionKind.PASSWORD: "Password",
    QuestionKind.PASSPHRASE: "Passphrase",
    QuestionKind.RECOVER: "What served has broken",
    QuestionKind.UNFINISHED: "Something was left half done",
}


class QuestionScreen(ModalScreen[str | None]):
    """A question of the engine. The answer goes to whoever asked and is kept nowhere."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.question = question

    def body(self) -> tuple[Entry, ...]:
        """What is asked, with the node and the fingerprint or key file."""
        question = self.question
        name = {QuestionKind.HOST_KEY: "fingerprint", QuestionKind.PASSWORD: "for",
                QuestionKind.PASSPHRASE: "key file", QuestionKind.RECOVER: "left out",
                QuestionKind.UNFINISHED: "served then"}[question.kind]
        out: list[Entry] = [
            Heading(TITLES[question.kind]), Paragraph(), Paragraph(line(question.text)), Paragraph(),
        ]
        if question.node:
            out.append(Fact("node", line(Span(question.node, Tone.STRONG)), room=11))
        if question.detail:
            out.append(Fact(name, line(Span(question.detail, Tone.STRONG))))
        if question.kind is QuestionKind.HOST_KEY:
            out += [Paragraph(), Paragraph(line(Span(
                "Compare it with what the machine itself shows: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
                Tone.MUTED)))]
        return tuple(out)


class HostKeyScreen(QuestionScreen):
    """Trust is a key of its own (not y), so that no keystroke meant for another dialog gives it."""

    AUTO_FOCUS = "#no"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "trust", "Trust this key", id="question.trust"),
        Binding("n,escape", "refuse", "Refuse", id="question.refuse"),
        Binding("left,right,tab,shift+tab", "other", "Other button", id="question.other", show=False),
    ]

    def compose(self) -> ComposeResult:
        """The question, then the buttons."""
        with Vertical(classes="dialog"):
            yield EntryView(self.body(), id="said")
            with Horizontal(classes="buttons"):
                yield Button("Refuse  n", id="no", compact=True)
                yield Button("Trust this key  t", id="yes", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Enter on a button."""
        self.dismiss("yes" if event.button.id == "yes" else None)

    def action_trust(self) -> None:
        """Remember this key for this node."""
        self.dismiss("yes")

    def action_refuse(self) -> None:
        """Do not connect."""
        self.dismiss(None)

    def action_other(self) -> None:
        """Between the two buttons."""
        wanted = "#no" if self.focused is not None and self.focused.id == "yes" else "#yes"
        self.query_one(wanted, Button).focus()


class RecoverScreen(QuestionScreen):
    """Whether to bring up again what has broken. Leaving it is what an empty return does."""

    AUTO_FOCUS = "#no"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "recover", "Bring it up", id="question.recover"),
        Binding("n,escape", "leave", "Leave it", id="question.leave"),
        Binding("left,right,tab,shift+tab", "other", "Other button", id="question.other", show=False),
    ]

    def compose(self) -> ComposeResult:
        """The question, then the buttons."""
        with Vertical(classes="dialog"):
            yield EntryView((*self.body(), Paragraph(), Paragraph(line(Span(
                "`recover: auto` in fleet.yaml does this without asking.", Tone.MUTED)))), id="said")
            with Horizontal(classes="buttons"):
                yield Button("Leave it  n", id="no", compact=True)
                yield Button("Bring it up  y", id="yes", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Enter on a button."""
        self.dismiss("yes" if event.button.id == "yes" else None)

    def action_recover(self) -> None:
        """Bring it up on what is there."""
        self.dismiss("yes")

    def action_leave(self) -> None:
        """Leave it broken."""
        self.dismiss(None)

    def action_other(self) -> None:
        """Between the two buttons."""
        wanted = "#no" if self.focused is not None and self.focused.id == "yes" else "#yes"
        self.query_one(wanted, Button).focus()


class UnfinishedScreen(QuestionScreen):
    """What becomes of an operation that a cockpit left half done when it died."""

    AUTO_FOCUS = "#no"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "settle('go on')", "Go on", id="question.go-on"),
        Binding("u", "settle('go back')", "Go back", id="question.go-back"),
        Binding("n,escape", "settle('')", "Leave it", id="question.leave-unfinished"),
        Binding("left,shift+tab", "app.focus_previous", "Other button", id="question.previous", show=False),
        Binding("right,tab", "app.focus_next", "Other button", id="question.next", show=False),
    ]

    def compose(self) -> ComposeResult:
        """The question, then the buttons."""
        with Vertical(classes="dialog"):
            yield EntryView(self.body(), id="said")
            with Horizontal(classes="buttons"):
                yield Button("Leave it  n", id="no", compact=True)
                yield Button("Go back  u", id="back", compact=True)
                yield Button("Go on  y", id="yes", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Enter on a button."""
        self.dismiss({"yes": "go on", "back": "go back"}.get(event.button.id or ""))

    def action_settle(self, answer: str) -> None:
        """That way."""
        self.dismiss(answer or None)


class SecretScreen(QuestionScreen):
    """A masked line. What was typed is gone from the screen before it is handed over."""

    AUTO_FOCUS = "#secret"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "refuse", "Skip", id="question.skip"),
    ]

    def compose(self) -> ComposeResult:
        """The question and the line."""
        with Vertical(classes="dialog"):
            yield EntryView(self.body(), id="said")
            box = Input(password=True, id="secret", compact=True, placeholder="not shown, not kept")
            box.cursor_blink = False
            yield box
            yield EntryView((Paragraph(line(Span("enter", Tone.ACCENT), Span(" sends it  ", Tone.MUTED),
                                            Span("esc", Tone.ACCENT), Span(" goes without", Tone.MUTED))),), id="hint")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Hand it over."""
        secret = event.value
        event.input.clear()
        self.dismiss(secret or None)

    def action_refuse(self) -> None:
        """Without it."""
        self.query_one("#secret", Input).clear()
        self.dismiss(None)


def question_screen(question: Question) -> QuestionScreen:
    """The screen for a question."""
    match question.kind:
        case QuestionKind.HOST_KEY:
            return HostKeyScreen(question)
        case QuestionKind.RECOVER:
            return RecoverScreen(question)
        case QuestionKind.UNFINISHED:
            return UnfinishedScreen(question)
    return SecretScreen(question)


class AddNodeScreen(ModalScreen[str | None]):
    """The address of a machine that nothing found."""

    AUTO_FOCUS = "#address"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", id="add-node.cancel")]

    def compose(self) -> ComposeResult:
        """What is wanted and a line for it."""
        with Vertical(classes="dialog"):
            yield EntryView((
                Heading("Add a node"), Paragraph(),
                Paragraph(line("Its address or name, as ssh takes it: ", Span("user@host:port", Tone.STRONG),
                               Span(" (user and port are optional).", Tone.MUTED))),
            ), id="said")
            box = Input(id="address", compact=True, placeholder="10.0.0.7")
            box.cursor_blink = False
            yield box
            yield EntryView(self._hint(), id="hint")

    def _hint(self, problem: str = "") -> tuple[Entry, ...]:
        if problem:
            return (Paragraph(line(Span(f"✕ {problem}", Tone.BAD))),)
        return (Paragraph(line(Span("enter", Tone.ACCENT), Span(" adds it for this session  ", Tone.MUTED),
                               Span("esc", Tone.ACCENT), Span(" leaves it", Tone.MUTED))),)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take it when it can be an address."""
        address = event.value.strip()
        problem = what_is_wrong_with(address)
        if problem:
            self.query_one("#hint", EntryView).show(self._hint(problem))
            return
        self.dismiss(address)

    def action_cancel(self) -> None:
        """Leave it."""
        self.dismiss(None)


def what_is_wrong_with(address: str) -> str:
    """Why this cannot be an address; "" when it can."""
    if not address:
        return "An address is needed, for instance 10.0.0.7."
    if any(char.isspace() or not char.isprintable() for char in address):
        return "An address has no spaces in it."
    if address.startswith("-"):
        return "An address does not begin with a dash."
    if len(address) > 300:
        return "That is too long for an address."
    host = address.rpartition("@")[2]
    return "" if host.strip(":") else "The host is missing."
