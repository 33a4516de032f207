package appliance

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"signalbox/appliance/config"
)

// LogLevel is the level of a running logger; SIGHUP moves it. The zero value writes everything.
type LogLevel struct{ level atomic.Int32 }

// Set changes the lowest level written.
func (l *LogLevel) Set(level config.LogLevel) {
	parsed, err := zerolog.ParseLevel(string(level))
	if err != nil { // the configuration checked it
		parsed = zerolog.InfoLevel
	}
	l.level.Store(int32(parsed))
}

// leveled drops what is below the level.
type leveled struct {
	io.Writer
	level *LogLevel
}

// WriteLevel is zerolog's hook for writers that look at levels.
func (w leveled) WriteLevel(level zerolog.Level, p []byte) (int, error) {
	if level < zerolog.Level(w.level.level.Load()) {
		return len(p), nil
	}
	return w.Write(p)
}

// NewLogger returns the logger of a process and the handle that moves its level. terminal says whether out is one, which
// decides between text and JSON when the format is auto.
func NewLogger(out io.Writer, cfg config.Log, terminal bool) (zerolog.Logger, *LogLevel) {
	level := &LogLevel{}
	level.Set(cfg.Level)
	if cfg.Format == config.FormatText || (cfg.Format == config.FormatAuto && terminal) {
		out = zerolog.ConsoleWriter{Out: out, TimeFormat: time.DateTime, NoColor: !terminal}
	}
	return zerolog.New(leveled{out, level}).With().Timestamp().Logger(), level
}
