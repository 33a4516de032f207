package agentconn

import (
	"signalbox/appliance/fault"
	"signalbox/transport/wire"
)

// maxOpenFrames bounds the memory of the frames of one upload that are parsed at once, in bytes. One frame always fits.
const maxOpenFrames = 16 << 20

// held is an authentic frame that waits for the router. The whole upload is verified first, so its parsed form may have
// been given up meanwhile: a frame of tiny values takes ten times its length.
type held struct {
	text  []byte
	frame wire.Frame // when open
	open  bool
}

// openFrames returns the first of the frames, as many as may be parsed at once. They stay open until closeFrames.
func openFrames(frames []held) ([]wire.Frame, error) {
	group := make([]wire.Frame, 0, len(frames))
	size := 0
	for i := range frames {
		h := &frames[i]
		if !h.open {
			f, err := wire.ParseFrame(h.text)
			if err != nil {
				return nil, fault.Wrap(fault.Internal, err, "a verified frame cannot be read again")
			}
			h.frame, h.open = f, true
		}
		if size += h.frame.Size(); size > maxOpenFrames && len(group) > 0 {
			break // it stays open for the next group, which it begins
		}
		group = append(group, h.frame)
	}
	return group, nil
}

// closeFrames gives the memory of parsed frames back. What was made of them must not be used any more.
func closeFrames(frames []held) {
	for i := range frames {
		if h := &frames[i]; h.open {
			h.frame.Release()
			h.open = false
		}
	}
}
