package conformance

import "time"

// vectors are section M, in its order.
var vectors = []Vector{
	{Number: 1, Name: "an open without parameters is refused", run: (*trial).noParameters},
	{Number: 2, Name: "a wrong key is closed without a frame", run: (*trial).wrongKey},
	{Number: 3, Name: "connection_state comes first", run: (*trial).stateFirst},
	{Number: 4, Name: "pings every 2 s keep an idle stream alive", wait: idleFor + 10*time.Second, run: (*trial).idle},
	{Number: 5, Name: "an addressed message comes once", run: (*trial).addressedOnce},
	{Number: 6, Name: "pongs with an older cursor prove life", wait: 10 * time.Second, run: (*trial).olderCursor},
	{Number: 7, Name: "a drop is resumed without loss", wait: 3 * time.Second, run: (*trial).resume},
	{Number: 8, Name: "silence lapses and frees the room", wait: 15 * time.Second, run: (*trial).lapse},
	{Number: 9, Name: "a lapsed id is opened with a stale generation", wait: 15 * time.Second, run: (*trial).reopenLapsed},
	{Number: 10, Name: "a second open takes the connection over", run: (*trial).takeover},
	{Number: 11, Name: "a stale generation is refused and disturbs nobody", run: (*trial).stale},
	{Number: 12, Name: "a room that cannot be served is named and changes nothing", run: (*trial).badRoom},
	{Number: 13, Name: "a single stream without a room is held", wait: 5 * time.Second, run: (*trial).held},
	{Number: 14, Name: "a new claim of a single stream replaces the old", run: (*trial).oneRoom},
	{Number: 15, Name: "an all stream yields a claimed room and takes it back", wait: 15 * time.Second, run: (*trial).yields},
	{Number: 16, Name: "subscribe respects a sibling unless it takes over", run: (*trial).subscribing},
	{Number: 17, Name: "placements are the whole set", run: (*trial).placing},
	{Number: 18, Name: "a restart makes no gap", Skip: "needs a restart of the server"},
	{Number: 19, Name: "a restored database makes a reset gap", Skip: "needs a restored database"},
	{Number: 20, Name: "2001 events leave one gap and 2000 events", wait: 2 * time.Minute, run: (*trial).retention},
	{Number: 21, Name: "filter=addressed withholds and does not stall", run: (*trial).filter},
	{Number: 22, Name: "protocol ranges are negotiated", run: (*trial).negotiation},
	{Number: 23, Name: "the 33rd connection is refused", wait: 10 * time.Second, run: (*trial).cap},
	{Number: 24, Name: "what the MCP runtime does", wait: 5 * time.Second, run: (*trial).mcpRuntime},
	{Number: 25, Name: "removed SSE says so", run: (*trial).removedSSE},
	{Number: 26, Name: "an operation with a dead connection id says so", wait: 15 * time.Second, run: (*trial).deadConnection},
	{Number: 27, Name: "mentions end where names end", run: (*trial).mentions},
	{Number: 28, Name: "no echo to the sender", run: (*trial).noEcho},
}
