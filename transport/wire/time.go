package wire

import (
	"time"

	"signalbox/appliance/rawjson"
)

// ParseTime reads a frame timestamp (agent protocol C.5). It is rawjson.ParseTime.
func ParseTime(s string) (time.Time, error) { return rawjson.ParseTime(s) }

// AppendTime appends a frame timestamp (agent protocol C.5). It is rawjson.AppendTime.
func AppendTime(dst []byte, t time.Time) []byte { return rawjson.AppendTime(dst, t) }
