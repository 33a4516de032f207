// Package roomclient is the agent's side of the rooms protocol, on both of its transports: what `signalbox bench rooms`
// loads a server with, what the conformance runner asks, and what tests talk to a server with. Section names in comments
// are those of the rooms protocol.
//
// Dial and DialSSE open one stream, answer its pings or send its beats, and decide nothing else. Client.Run is a whole
// client as section J describes it: it reopens, resumes and gives up as the published library does.
package roomclient
