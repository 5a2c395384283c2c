"""Every key of the cockpit, each with an id, so that it can be bound to something else by `App.set_keymap`.

Help, the key line and the palette are made from these; nothing is written down twice. Keys of the
tables and panes themselves (up, down, page ...) stand with those widgets.
"""

from __future__ import annotations

from textual.binding import Binding, BindingType

# What changes the fleet: gone with --read-only.
ACTING = frozenset({"bring_up", "tear_down", "start", "stop", "restart", "adopt", "add_node",
                    "connect", "swap", "swap_back", "cancel_operation", "cancel_request", "cancel_swarm"})

APP: list[BindingType] = [
    Binding("question_mark", "help", "Help", key_display="?", id="app.help", tooltip="Every key that does something"),
    Binding("colon", "command_palette", "Palette", key_display=":", id="app.palette", show=False,
            tooltip="Everything that can be done now, by name"),
    Binding("m", "swap", "Swap model", id="app.swap", show=False,
            tooltip="Serve another model: choose it, see the plan; requests wait and none is lost"),
    Binding("u", "swap_back", "Swap back", id="app.swap-back", show=False,
            tooltip="Serve again what was served before; shows the plan first"),
    Binding("T", "take_over", "Take over", id="app.take-over",
            tooltip="Act on the fleet though another cockpit does; that one only looks from then on"),
    Binding("p", "pause", "Pause", id="app.pause", show=False, tooltip="Hold the picture still; the engine goes on"),
    Binding("ctrl+r", "reload", "Reload", id="app.reload", show=False, tooltip="Read fleet.yaml again"),
    Binding("ctrl+s", "shoot", "Screenshot", id="app.screenshot", show=False, tooltip="Save the screen as SVG"),
    Binding("q", "quit", "Quit", id="app.quit", show=False, tooltip="Leave; services go on running"),
    Binding("ctrl+q", "quit", "Quit", id="app.quit-anywhere", show=False, priority=True, system=True),
    Binding("ctrl+c", "interrupt", "", id="app.interrupt", show=False, system=True),
]

FLEET: list[BindingType] = [
    Binding("b", "bring_up", "Bring up", id="fleet.up", tooltip="Bring a model up; shows the plan first"),
    Binding("d", "tear_down", "Tear down", id="fleet.down", tooltip="End everything of ours; shows the plan first"),
    Binding("c", "cancel_operation", "Cancel", id="fleet.cancel",
            tooltip="Stop the running operation and undo what it did (asks first)"),
    Binding("l", "logs", "Logs", id="fleet.logs", tooltip="The log of the selected service"),
    Binding("s", "start", "Start", id="service.start", tooltip="Start the selected service again, as it was"),
    Binding("x", "stop", "Stop", id="service.stop", tooltip="End the selected process (asks first)"),
    Binding("r", "restart", "Restart", id="service.restart", tooltip="End the selected service and start it again"),
    Binding("a", "adopt", "Adopt", id="service.adopt", tooltip="Take a foreign process into our care"),
    Binding("slash", "filter", "Filter", key_display="/", id="fleet.filter",
            tooltip="Show rows with these words; !word leaves out"),
    Binding("n", "add_node", "Add node", id="fleet.add-node", tooltip="Add a machine by its address"),
    Binding("t", "connect", "Try now", id="fleet.connect",
            tooltip="Connect to the selected machine now; asks for what it needs (host key, password)"),
    Binding("e", "events", "Events", id="fleet.events", tooltip="What is wrong now, and what happened"),
    Binding("v", "operation", "Operation", show=False, id="fleet.operation",
            tooltip="The newest operation, step by step, over the whole screen"),
    Binding("y", "copy", "Copy", show=False, id="fleet.copy", tooltip="Copy what the detail pane says"),
    Binding("Y", "copy_command", "Copy command", show=False, id="fleet.copy-command",
            tooltip="Copy the shell command that does the same"),
    Binding("tab", "next_panel", "Next panel", show=False, id="fleet.next-panel"),
    Binding("shift+tab", "previous_panel", "Previous panel", show=False, id="fleet.previous-panel"),
    Binding("escape", "back", "Back", show=False, id="fleet.back",
            tooltip="Clear the filter, put an operation that is over away"),
]

SPLIT: list[BindingType] = [
    Binding("plus", "context(2)", "Context", key_display="+", id="split.more-context",
            tooltip="What if: twice the context"),
    Binding("minus", "context(-2)", "Less", key_display="-", id="split.less-context",
            tooltip="What if: half the context"),
    Binding("v", "kv", "KV type", id="split.kv", tooltip="What if: KV in the next type (f16, q8_0, q4_0)"),
    Binding("t", "mode", "Mode", id="split.mode", tooltip="What if: by time, or in proportion to memory"),
    Binding("space", "leave_out", "Leave out", id="split.leave-out",
            tooltip="What if: without the selected device, or with it again"),
    Binding("h", "head", "Head", id="split.head", tooltip="What if: the next node as the head"),
    Binding("b", "bring_up", "Bring up", id="split.up", tooltip="Bring it up as fleet.yaml has it; the plan first"),
    Binding("r", "again", "Plan anew", show=False, id="split.again", tooltip="Work it out again with what is true now"),
    Binding("y", "copy", "Copy", show=False, id="split.copy", tooltip="Copy the plan as text"),
    Binding("Y", "copy_command", "Copy command", show=False, id="split.copy-command",
            tooltip="Copy the shell command that shows this plan"),
    Binding("tab", "next_panel", "Next panel", show=False, id="split.next-panel"),
    Binding("escape", "back", "As it is", show=False, id="split.back", tooltip="Back to the plan as fleet.yaml has it"),
]

MODELS: list[BindingType] = [
    Binding("b", "bring_up", "Bring up", id="models.up", tooltip="Bring the selected model up; shows the plan first"),
    Binding("s", "split", "Split", id="models.split", tooltip="How the selected model would be split (screen 2)"),
    Binding("d", "distribute", "Distribute", id="models.distribute",
            tooltip="Bring the selected model to other machines; shows the plan first"),
    Binding("slash", "filter", "Filter", key_display="/", id="models.filter",
            tooltip="Show models with these words; !word leaves out"),
    Binding("y", "copy", "Copy path", id="models.copy", tooltip="Copy the path of the selected model's file"),
    Binding("Y", "copy_command", "Copy command", show=False, id="models.copy-command",
            tooltip="Copy the shell command that brings it up"),
    Binding("tab", "next_panel", "Next panel", show=False, id="models.next-panel"),
    Binding("escape", "back", "Back", show=False, id="models.back", tooltip="Clear the filter"),
]

PROXY: list[BindingType] = [
    Binding("c", "cancel_request", "End request", id="proxy.cancel",
            tooltip="End the selected live request; its client gets an error (asks first)"),
    Binding("s", "start", "Start", id="proxy.start", tooltip="Start a proxy on this machine (asks first)"),
    Binding("x", "stop", "Stop", id="proxy.stop", tooltip="Stop the proxy that is shown (asks first)"),
    Binding("l", "logs", "Logs", id="proxy.logs", tooltip="The log of the proxy"),
    Binding("slash", "filter", "Filter", key_display="/", id="proxy.filter",
            tooltip="Show requests with these words; !word leaves out"),
    Binding("y", "copy", "Copy address", id="proxy.copy", tooltip="Copy the address that clients point at"),
    Binding("right_square_bracket", "step(1)", "Next proxy", key_display="]", show=False, id="proxy.next"),
    Binding("left_square_bracket", "step(-1)", "Previous proxy", key_display="[", show=False, id="proxy.previous"),
    Binding("Y", "copy_command", "Copy command", show=False, id="proxy.copy-command",
            tooltip="Copy the shell command that shows the same"),
    Binding("tab", "next_panel", "Next panel", show=False, id="proxy.next-panel"),
    Binding("escape", "back", "Back", show=False, id="proxy.back", tooltip="Clear the filter"),
]

SWARM: list[BindingType] = [
    Binding("c", "cancel_swarm", "Stop it", id="swarm.cancel",
            tooltip="Stop this distribution; what has arrived is kept (asks first)"),
    Binding("slash", "filter", "Filter", key_display="/", id="swarm.filter",
            tooltip="Show machines with these words; !word leaves out"),
    Binding("v", "verify", "Verify", id="swarm.verify",
            tooltip="Copy the shell command that checks every piece of the file and mends what is bad"),
    Binding("right_square_bracket", "step(1)", "Next swarm", key_display="]", show=False, id="swarm.next"),
    Binding("left_square_bracket", "step(-1)", "Previous swarm", key_display="[", show=False, id="swarm.previous"),
    Binding("y", "copy", "Copy", show=False, id="swarm.copy", tooltip="Copy what is shown as text"),
    Binding("Y", "copy_command", "Copy command", show=False, id="swarm.copy-command",
            tooltip="Copy the shell command that distributes this model"),
    Binding("tab", "next_panel", "Next panel", show=False, id="swarm.next-panel"),
    Binding("escape", "back", "Back", show=False, id="swarm.back", tooltip="Clear the filter"),
]

DETAIL: list[BindingType] = [
    Binding("escape,enter", "back", "Back", id="detail.back"),
    Binding("q", "back", "Back", show=False, id="detail.quit"),
    Binding("y", "copy", "Copy", id="detail.copy", tooltip="Copy all of it as text"),
]

LOGS: list[BindingType] = [
    Binding("escape", "back", "Back", id="logs.back"),
    Binding("q", "back", "Back", show=False, id="logs.quit"),
    Binding("slash", "filter", "Filter", key_display="/", id="logs.filter",
            tooltip="Lines with these words; !word leaves out"),
    Binding("p", "pause", "Pause", id="logs.pause", tooltip="Take no new lines; they come when you go on"),
    Binding("y", "copy", "Copy", id="logs.copy", tooltip="Copy the lines that are shown"),
    Binding("Y", "copy_command", "Copy command", show=False, id="logs.copy-command",
            tooltip="Copy the shell command that shows this log"),
]
