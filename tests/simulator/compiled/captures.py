"""Graph captures of a thread, and replays of what they captured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulator.compiled.recording import Node, Recording, Thread


class Capture:
    """A graph capture on a thread, which has begun, and its replays."""

    def __init__(self, recording: Recording, thread: Thread, graph: int) -> None:
        self._recording, self._thread = recording, thread
        self._instance = f"exec {100 + graph} of {graph}"
        self._copies: list[Node] = []
        call = recording.call(thread, "cudaStreamBeginCapture_v10000")
        thread.nodes = []
        if recording.has.whole:
            recording.made(thread, call.start, f"graph {graph}")

    def end(self) -> None:
        """Ends it, and makes the graph executable, for which every node is copied."""
        recording, thread = self._recording, self._thread
        nodes, thread.nodes = thread.nodes or [], None
        recording.call(thread, "cudaStreamEndCapture_v10000")
        call = recording.call(thread, "cudaGraphInstantiate_v10000")
        self._copies = [node._replace(number=recording.new_node()) for node in nodes]
        if recording.has.whole:
            recording.made(thread, call.start, self._instance)
            return
        for node, copy in zip(nodes, self._copies, strict=True):
            recording.made(thread, call.start, str(node.number), f"node!{copy.number}")

    def replay(self) -> None:
        """Replays it once."""
        if self._recording.has.whole:
            self._recording.replay_whole(self._thread, self._copies, self._instance)
        else:
            self._recording.replay(self._thread, self._copies)
