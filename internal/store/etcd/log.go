package etcd

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// harmless are errors that etcd 3.7 logs in its normal life.
var harmless = map[string]bool{
	// A new member has no snapshot to detect the storage version from; it succeeds at the next attempt.
	"failed to update storage version": true,
}

// quietLogger writes etcd's errors but for the harmless ones.
func quietLogger(w io.Writer) *zap.Logger {
	enc := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		MessageKey: "message", LevelKey: "level", TimeKey: "time", NameKey: "name",
		EncodeTime: zapcore.ISO8601TimeEncoder, EncodeLevel: zapcore.CapitalLevelEncoder, EncodeDuration: zapcore.StringDurationEncoder,
	})
	core := zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), zapcore.ErrorLevel)
	return zap.New(quietCore{core}).Named("etcd")
}

// quietCore drops harmless messages.
type quietCore struct{ zapcore.Core }

// With implements zapcore.Core.
func (c quietCore) With(f []zapcore.Field) zapcore.Core { return quietCore{c.Core.With(f)} }

// Check implements zapcore.Core.
func (c quietCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if harmless[e.Message] {
		return ce
	}
	return c.Core.Check(e, ce)
}
