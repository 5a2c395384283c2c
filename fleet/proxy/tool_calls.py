"""The `index` of tool calls: clients put the parts of a streamed call together by it, and some servers leave it out.

Ollama's older builds send no index, others number every call 0; then a client glues two calls into one, or fails. Calls
are told apart by their ids; a part without an id belongs to the call that its index, as the server counts, last began.
"""

from __future__ import annotations

CALLS_KEPT = 1024        # calls of one answer that are remembered; what comes after them is left as it is


class ToolCallIndexes:
    """Numbers the tool calls of one choice of one streamed answer."""

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}         # id -> the index that the client sees
        self._by_said: dict[int | None, int] = {}   # the server's index -> the index that the client sees
        self._next = 0

    def repair(self, calls: list[object]) -> bool:
        """Give every call (part) of one chunk its right index, in place. True if something was changed."""
        changed = False
        for call in calls:
            if not isinstance(call, dict):
                continue
            said = call.get("index")
            if isinstance(said, bool) or not isinstance(said, int) or said < 0:
                said = None
            right = self._right(call, said)
            if right != call.get("index") or said is None:
                call["index"] = right
                changed = True
        return changed

    def _right(self, call: dict[str, object], said: int | None) -> int:
        name = call.get("id")
        if isinstance(name, str) and name:
            if name in self._by_id:
                right = self._by_id[name]
            else:
                right = self._new(said)
                if len(self._by_id) < CALLS_KEPT:
                    self._by_id[name] = right
        elif said in self._by_said and not (said is None and _begins(call)):
            right = self._by_said[said]
        else:
            right = self._new(said)
        if len(self._by_said) < CALLS_KEPT or said in self._by_said:
            self._by_said[said] = right
        self._by_said[None] = right            # a part without index goes on with the last call
        return right

    def _new(self, said: int | None) -> int:
        """The index of a call that begins: the server's own while no other call has it, else the next free one."""
        taken = set(self._by_said.values()) | set(self._by_id.values()) if len(self._by_id) < CALLS_KEPT else set()
        right = said if said is not None and said not in taken else max(self._next, 0)
        self._next = max(self._next, right + 1)
        return right


def _begins(call: dict[str, object]) -> bool:
    """A part with a function's name is the first of its call."""
    function = call.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


def number_whole(calls: object) -> bool:
    """Number the calls of an answer that came at once: the index is their place. True if something was changed.

    OpenAI's answers that come at once carry no index, so one is put right only where it is there and wrong: when two
    calls have the same.
    """
    if not isinstance(calls, list):
        return False
    said = [call["index"] for call in calls if isinstance(call, dict) and "index" in call]
    if len(said) < 2 or len({repr(index) for index in said}) == len(said):
        return False
    for place, call in enumerate(calls):
        if isinstance(call, dict):
            call["index"] = place
    return True
