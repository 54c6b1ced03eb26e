"""Publishers that stream their events by gRPC, in place of publishing them over ZeroMQ: SMG's
servicers of vLLM, SGLang, TokenSpeed and TensorRT-LLM, and OpenEngine's servers.

A stream says the same as its engine's own publisher. So each batch becomes what that would have
sent: three frames, of which the last is a batch in msgpack (`smg`, `openengine`); behind the inbox
nothing is another thing. What a stream says beyond that stands in the first frame
(`bridge.wire.stream_marks`): that a batch begins all that its engine has done, or is a part of a
snapshot. `connection` keeps one publisher's stream, `subscriber` has all of them.

Nothing here is imported before the first such publisher is followed.
"""
